"""Life cycle of a Brain session: the state, and the fold of its log into that state.

Rules: `TRANSITIONS` is the only place where a status changes; an event that has no row is an illegal step, raises, and changes
nothing. Every event named here is appended with `expect`, so what was decided on one state is never folded onto another.
Events that aren't named here (output of the agent) leave the state alone. Nothing here reads a clock.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from app.core.errors import IllegalStep


class Status(enum.StrEnum):
    """Status of a session, as the contract's `Session.status` shows it."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FAILED = "failed"
    CLOSED = "closed"


class After(enum.Enum):
    """Where a step leads when that depends on the queue: `REST` is queued if an input waits, else idle."""

    REST = "rest"


_S = Status
_SETTLED = (_S.IDLE, _S.INTERRUPTED, _S.FAILED)

TRANSITIONS: dict[tuple[Status, str], Status | After] = {
    (_S.IDLE, "user.message"): _S.QUEUED,
    (_S.QUEUED, "user.message"): _S.QUEUED,
    (_S.RUNNING, "user.message"): _S.RUNNING,
    (_S.RUNNING, "user.interrupt"): _S.RUNNING,
    (_S.QUEUED, "input.withdrawn"): After.REST,
    (_S.RUNNING, "input.withdrawn"): _S.RUNNING,
    (_S.INTERRUPTED, "input.withdrawn"): _S.INTERRUPTED,
    (_S.FAILED, "input.withdrawn"): _S.FAILED,
    (_S.QUEUED, "turn.started"): _S.RUNNING,
    (_S.RUNNING, "turn.steered"): _S.RUNNING,
    (_S.RUNNING, "turn.completed"): After.REST,
    (_S.RUNNING, "turn.interrupted"): _S.INTERRUPTED,
    (_S.RUNNING, "turn.interrupted:user"): After.REST,
    (_S.RUNNING, "turn.failed"): _S.FAILED,
    (_S.RUNNING, "rate_limited"): _S.QUEUED,
    (_S.INTERRUPTED, "session.resumed"): After.REST,
    (_S.FAILED, "session.resumed"): After.REST,
    **{(status, "session.restored"): _S.IDLE for status in _SETTLED},
    **{(status, "session.closed"): _S.CLOSED for status in (*_SETTLED, _S.QUEUED)},
}

STATEFUL = frozenset(kind.partition(":")[0] for _, kind in TRANSITIONS)

USAGE_NAMES = 32
MOST_USAGE = 2**53
"""Bounds of `State.usage`: beyond this a JSON number isn't exact. (A name like "@1" would be taken for an offset's placeholder.)"""

SETTLING = frozenset({"turn.completed", "turn.interrupted", "turn.failed", "rate_limited"})
"""Events that end a turn. A turn has exactly one of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """An accepted input that no turn has consumed: its event id and place in the log.

    `offset` is a placeholder string such as `"@0"` while the event's offset is not known: `append` puts the number in.
    """

    id: str
    gen: int
    offset: int | str


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """The open turn: `since` is the offset of its `turn.started`; `inputs` are the inputs that it consumed."""

    id: str
    epoch: int
    inputs: tuple[Queued, ...]
    gen: int
    since: int | str
    interrupting: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last completed checkpoint: `offset` is the next one after the event that names it; `time` is that event's."""

    id: str
    gen: int
    offset: int | str
    time: str


@dataclasses.dataclass(frozen=True, slots=True)
class Ended:
    """The last turn that was settled for good (a parked one isn't): `since` is the offset of its `turn.started`."""

    id: str
    gen: int
    since: int | str


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What a log folds to. `not_before` (unix ms) parks the queue until a vendor's limit resets; `usage` sums all turns."""

    status: Status = Status.IDLE
    queue: tuple[Queued, ...] = ()
    turn: Turn | None = None
    checkpoint: Checkpoint | None = None
    updated_at: str = ""
    not_before: int = 0
    usage: Mapping[str, float] = dataclasses.field(default_factory=dict)
    ended: Ended | None = None

    def to_json(self) -> dict[str, Any]:
        """The state as plain JSON values; empty parts are left out."""
        out: dict[str, Any] = {"status": str(self.status), "updated_at": self.updated_at}
        if self.queue:
            out["queue"] = [[q.id, q.gen, q.offset] for q in self.queue]
        if self.turn:
            t = self.turn
            out["turn"] = {
                "id": t.id,
                "epoch": t.epoch,
                "inputs": [[q.id, q.gen, q.offset] for q in t.inputs],
                "gen": t.gen,
                "since": t.since,
                "interrupting": t.interrupting,
            }
        if self.checkpoint:
            c = self.checkpoint
            out["checkpoint"] = {"id": c.id, "gen": c.gen, "offset": c.offset, "time": c.time}
        if self.not_before:
            out["not_before"] = self.not_before
        if self.usage:
            out["usage"] = dict(self.usage)
        if self.ended:
            out["ended"] = [self.ended.id, self.ended.gen, self.ended.since]
        return out

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> State:
        """The inverse of `to_json`. Raises KeyError or TypeError on anything else."""
        turn = raw.get("turn")
        checkpoint = raw.get("checkpoint")
        return State(
            status=Status(raw["status"]),
            queue=tuple(Queued(*q) for q in raw.get("queue", ())),
            turn=Turn(**{**turn, "inputs": tuple(Queued(*q) for q in turn["inputs"])}) if turn else None,
            checkpoint=Checkpoint(**checkpoint) if checkpoint else None,
            updated_at=raw["updated_at"],
            not_before=raw.get("not_before", 0),
            usage=raw.get("usage", {}),
            ended=Ended(*raw["ended"]) if "ended" in raw else None,
        )


def step(state: State, kind: str, event_id: str, time: str, data: Mapping[str, Any], gen: int, offset: int | str) -> State:
    """The state after one event at `(gen, offset)`. Raises IllegalStep if the table has no row for a stateful event.

    `kind` is the event's type and `time` its RFC 3339 time. Events of another turn than the open one are illegal.
    """
    if kind not in STATEFUL:
        return state
    row = kind
    if kind == "turn.interrupted" and data.get("reason") == "user":
        row = "turn.interrupted:user"
    target = TRANSITIONS.get((state.status, row))
    if target is None:
        raise IllegalStep(f"{row} in a session that is {state.status}")
    if state.turn and "turn" in data and data["turn"] != state.turn.id:
        raise IllegalStep(f"{row} of turn {data['turn']}, but {state.turn.id} is open")
    changed = _fields(state, kind, event_id, time, data, gen, offset)
    after = dataclasses.replace(state, updated_at=time, **changed)
    if target is After.REST:
        target = Status.QUEUED if after.queue else Status.IDLE
    return dataclasses.replace(after, status=target)


def _fields(
    state: State, kind: str, event_id: str, time: str, data: Mapping[str, Any], gen: int, offset: int | str
) -> dict[str, Any]:
    queue = state.queue
    if kind == "user.message":
        place = Queued(event_id, gen, offset)
        if data.get("delivery") == "interrupt":
            turn = dataclasses.replace(state.turn, interrupting=True) if state.turn else None
            return {"queue": (place, *queue), "turn": turn}
        return {"queue": (*queue, place)}
    if kind == "user.interrupt":
        assert state.turn
        return {"turn": dataclasses.replace(state.turn, interrupting=True)}
    if kind == "input.withdrawn":
        left = tuple(q for q in queue if q.id != data["input"])
        # a limit parks those that wait: with the last of them it is over
        return {"queue": left} if left else {"queue": left, "not_before": 0}
    if kind in ("turn.started", "turn.steered"):
        taken = tuple(q for q in queue if q.id in data["inputs"])
        rest = tuple(q for q in queue if q.id not in data["inputs"])
        if len(taken) != len(data["inputs"]):
            raise IllegalStep(f"{kind} names an input that doesn't wait")
        if kind == "turn.steered":
            assert state.turn
            return {"queue": rest, "turn": dataclasses.replace(state.turn, inputs=(*state.turn.inputs, *taken))}
        return {"queue": rest, "turn": Turn(data["turn"], data["epoch"], taken, gen, offset), "not_before": 0}
    if kind in SETTLING:
        return _settled(state, kind, time, data, gen, offset)
    if kind in ("session.restored", "session.closed"):
        return {"queue": (), "not_before": 0, **({"checkpoint": state.checkpoint} if kind == "session.closed" else {})}
    return {}


def _settled(state: State, kind: str, time: str, data: Mapping[str, Any], gen: int, offset: int | str) -> dict[str, Any]:
    assert state.turn
    out: dict[str, Any] = {"turn": None}
    if data.get("checkpoint"):
        after = f"@{int(offset[1:]) + 1}" if isinstance(offset, str) else offset + 1
        out["checkpoint"] = Checkpoint(data["checkpoint"], gen, after, time)
    returned = data.get("returned", ())
    if returned:
        out["queue"] = (*(q for q in state.turn.inputs if q.id in returned), *state.queue)
    if kind == "rate_limited":
        out["queue"] = (*state.turn.inputs, *state.queue)
        out["not_before"] = int(data.get("reset_ms", 0))
    else:
        out["ended"] = Ended(state.turn.id, state.turn.gen, state.turn.since)
    out["usage"] = _summed(state.usage, {**data.get("usage", {}), "cost_usd": data.get("cost_usd")})
    return out


def _summed(usage: Mapping[str, float], more: Mapping[str, Any]) -> dict[str, float]:
    """Names and amounts come from the harness: what isn't a plain name and number, or is one name too many, is left out."""
    out = dict(usage)
    for name, amount in more.items():
        if not isinstance(amount, (int, float)) or isinstance(amount, bool) or not 0 <= amount < MOST_USAGE:
            continue
        if name in out or (len(out) < USAGE_NAMES and name[:1].isalpha()):
            out[name] = min(out.get(name, 0) + amount, MOST_USAGE)
    return out


def restored(state: State, checkpoint: Checkpoint) -> State:
    """The state that a generation which began from `checkpoint` starts with: settled, nothing waits, the agent is as it was then.

    `state` is the fold of the log up to the checkpoint's offset. Inputs that waited there aren't run again.
    """
    return dataclasses.replace(state, status=Status.IDLE, queue=(), turn=None, not_before=0, checkpoint=checkpoint)
