"""What must hold, checked at the moment at which it could stop to hold.

Rules: every write to the store, every append in Redis, every acknowledgement, every input that a harness gets and every page that a
reader gets comes by here. It looks at the store itself, never through the code under test.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from app.coord.coord import Appended, Holder, Seed, StateChange
from app.coord.fake_memory import LogKeys
from app.core import cursor
from app.core.errors import IllegalStep
from app.core.session import State, step
from app.log import events
from app.store import keys
from app.store.contract import Absent
from app.store.keys import LogName
from tests.sim.truth import Truth

if TYPE_CHECKING:
    from tests.sim.world import World


class Oracle:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._w = world
        self.truths: dict[str, Truth] = {}
        self.acked: dict[str, dict[str, Any]] = {}
        """Acknowledged inputs: event id -> the Event as it was answered, with `session`."""
        self.given: dict[str, list[str]] = {}
        """Input id -> turns with which a harness got it."""
        self.withdrawn: set[str] = set()
        """Inputs of which a client was told that they are taken back."""
        self._turns_given: set[str] = set()
        self._folds: dict[str, State] = {}
        self._epochs: dict[tuple[str, int], str] = {}

    def session(self, name: LogName) -> Truth:
        """Follows `name` from now on."""
        truth = self.truths[name.text] = Truth(name, self._w.objects, self._w.violate)
        truth.refresh()
        return truth

    # The store

    def before_put(self, key: str, body: bytes) -> bytes | None:
        if "/log/" not in key or "/trash/" in key:
            return None
        try:
            return self._w.objects.get(key).body
        except Absent:
            return None

    def after_put(self, key: str, body: bytes, before: bytes | None) -> None:
        if before is not None and before != body:
            self._w.violate(f"{key} was overwritten")
        if "/log/" in key or key.endswith("/session.json"):
            for truth in self.truths.values():
                if f"/sessions/{truth.name.session}/" in key:
                    truth.refresh()

    def before_delete(self, key: str) -> None:
        if "/pending/" not in key:
            return
        place = keys.parse_pending(key)
        truth = self.truths.get(LogName(place.tenant, place.session).text)
        try:
            event_id = orjson.loads(self._w.objects.get(key).body)["id"]
        except Absent:
            return
        if truth and event_id in waiting(truth.state) and self._place(truth, event_id) == (place.gen, place.offset):
            self._w.violate("the pending object of an input that still waits was deleted")

    @staticmethod
    def _place(truth: Truth, event_id: str) -> tuple[int, int] | None:
        return next(((f.gen, f.offset) for f in reversed(truth.facts) if f.id == event_id), None)

    # Redis

    def seeded(self, log: str, seed: Seed) -> None:
        self._folds[log] = State.from_json(orjson.loads(seed.state))
        truth = self.truths.get(log)
        if truth is None or seed.gen != truth.chain[-1].gen:
            return  # of an older generation: whoever named the newer one seeds it, or the next archiver does
        if seed.next != truth.head:
            self._w.violate(f"generation {seed.gen} was seeded at {seed.next}, but the log is at {truth.head}")
        elif self._folds[log] != truth.state:
            self._w.violate("seeded with another state than the log has")

    def appended(
        self, log: str, now: LogKeys, done: Appended, batch: list[tuple[str, bytes]], change: StateChange | None
    ) -> None:
        """The state in Redis is the fold of what is in Redis."""
        state = self._folds.get(log)
        if state is None:
            return
        try:
            for i, (_, raw) in enumerate(batch):
                e = events.parse(raw)
                state = step(state, e["type"], e["id"], e["time"], e["data"], done.gen, done.offset + i)
        except IllegalStep as error:
            self._w.violate(f"illegal step in Redis: {error.message}")
            return
        self._folds[log] = state
        if change and State.from_json(orjson.loads(now.state)) != state:
            self._w.violate("the state in Redis is not the fold of the log")

    def rolled_back(self, states: dict[str, bytes]) -> None:
        """Redis holds old data: what it will be asked for is judged again only when it is seeded anew."""
        self._folds = {log: State.from_json(orjson.loads(state)) for log, state in states.items()}

    def activated(self, log: str, holder: Holder) -> None:
        owner = self._epochs.setdefault((log, holder.epoch), holder.worker)
        if owner != holder.worker:
            self._w.violate(f"epoch {holder.epoch} was given to two workers")

    # Clients

    def acknowledged(self, name: LogName, shown: dict[str, Any]) -> None:
        """A client has its 202 for a message."""
        truth = self.truths[name.text]
        position = cursor.decode(name.session or "", shown["cursor"])
        raw = truth.at.get((position.gen, position.offset))
        if raw is None:
            self._w.violate("an input was acknowledged that is in no segment")
            return
        if {**events.parse(raw), "cursor": shown["cursor"]} != shown:
            self._w.violate("an input was acknowledged that is another one in the log")
        if shown["id"] in waiting(truth.state) and not self._pending(name, shown["id"]):
            self._w.violate("an input was acknowledged without its pending object")
        self.acked[shown["id"]] = {**shown, "session": name.text}

    def _pending(self, name: LogName, event_id: str) -> bool:
        found = self._w.objects.list(keys.pending_prefix(name.tenant, name.session))
        return any(orjson.loads(self._w.objects.get(key).body)["id"] == event_id for key in found)

    def known(self, name: LogName, state: State, since: set[str]) -> None:
        """A status was read: it knows of every input in `since`, acknowledged to this client and waiting before it asked."""
        truth = self.truths[name.text]
        unknown = since & waiting(truth.state) - waiting(state)
        live = self._folds.get(name.text)
        if live is not None:
            unknown &= waiting(live)
        if unknown:
            self._w.violate("a status was older than what its reader had seen")

    # Harnesses

    def remembers(self, log: str, memory: list[str], checkpoint: str | None) -> None:
        """A harness was made from a checkpoint."""
        for fold in self.truths[log].folds[::-1]:
            if (checkpoint or "") in fold.memory:
                if tuple(memory) != fold.memory[checkpoint or ""]:
                    self._w.violate("a harness was started with another memory than its checkpoint has")
                return

    def gets(self, log: str, turn: str, inputs: list[str], memory: list[str], steered: bool) -> None:
        """A harness gets inputs."""
        truth = self.truths[log]
        if not steered:
            if turn not in truth.started:
                self._w.violate("a harness got its input before turn.started was durable")
                return
            if turn in self._turns_given:
                self._w.violate("a turn was given to a harness twice")
            self._turns_given.add(turn)
            if truth.state.turn and truth.state.turn.id == turn and tuple(memory) != truth.remembered():
                self._w.violate(
                    f"an agent remembers {len(memory)} inputs at the start of a turn, not {len(truth.remembered())}"
                )
        if self.withdrawn.intersection(inputs):
            self._w.violate("a harness got an input that was withdrawn")
        for each in inputs:
            if each in truth.dropped:
                self.given.pop(each, None)  # what ran in a past that a restore took back may run again
            before = self.given.setdefault(each, [])
            for other in before:
                settled = truth.settled.get(other)
                if not settled or (settled["kind"] != "rate_limited" and each not in settled.get("returned", ())):
                    self._w.violate("a harness got an input a second time")
            before.append(turn)


def waiting(state: State) -> set[str]:
    """Ids of the inputs that no settled turn has consumed."""
    return {q.id for q in (*state.queue, *(state.turn.inputs if state.turn else ()))}
