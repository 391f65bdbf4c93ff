"""What the log and the workers ask of Redis: typed calls over the Lua scripts.

Rules: nothing here decides; each method is one script, and its docstring says what each answer means. A log is given by its Redis
name (`LogName.redis`). COLD means that the log isn't bound to this incarnation of the server and must be recovered first.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from app.coord.pushes import Pushes
from app.coord.scripts import Scripts


class Answer(enum.StrEnum):
    """The first word of a script's reply."""

    OK = "OK"
    COLD = "COLD"
    FENCED = "FENCED"
    DUP = "DUP"
    STALE = "STALE"
    HAVE = "HAVE"
    WRONG_INC = "WRONG_INC"
    OLD = "OLD"
    RETRY = "RETRY"
    NONE = "NONE"
    FULL = "FULL"
    WORK = "WORK"
    OPEN = "OPEN"
    BEHIND = "BEHIND"


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """A lease's holder: the worker's random id and its fencing number."""

    worker: str
    epoch: int


class StateChange(NamedTuple):
    """A new folded state, decided on `expect`: the JSON may hold placeholders `"@i"` for the offset of event i of the batch."""

    expect: str
    state: bytes
    status: str
    not_before: int = 0


class Key(NamedTuple):
    """An idempotency key's digest and the digest of the body that came with it (hex)."""

    digest: str
    body: str


class Appended(NamedTuple):
    """`answer` OK: events are at `offset`.. of `gen`. DUP: this id or key is at `offset` with event id `id`, body digest `body`."""

    answer: Answer
    gen: int = 0
    offset: int = 0
    version: str = ""
    id: str = ""
    body: str = ""


class Look(NamedTuple):
    """A log's head: next offset, state version, folded state (JSON), archived head, and the lease's holder (worker empty: none)."""

    gen: int
    next: int
    version: str
    state: bytes
    arch: int
    worker: str
    epoch: str


class Tail(NamedTuple):
    """One atomic look at the tail: `entries` are dense from `start` on; `astate`/`asha` belong to the last segment."""

    gen: int
    arch: int
    next: int
    version: str
    state: bytes
    astate: bytes
    asha: str
    start: int
    entries: list[bytes]


class Seed(NamedTuple):
    """What recovery puts into Redis. `keys` maps key digest to "gen offset id body", `ids` event id to offset."""

    gen: int
    inc: str
    next: int
    state: bytes
    status: str
    not_before: int
    epoch: int
    vendor: str
    astate: bytes
    asha: str
    grace_ms: int
    keys: Mapping[str, str]
    ids: Mapping[str, int]


class Claimed(NamedTuple):
    """A reservation of the log with this Redis name. `retry_ms` is set when one will be claimable that soon and none is now."""

    log: str = ""
    vendor: str = ""
    gen: int = 0
    status: str = ""
    retry_ms: int = 0


class Forgotten(NamedTuple):
    """A log that was dropped from Redis; or (`behind`) one that wasn't, because its tail isn't archived."""

    log: str
    behind: bool


class Caps(NamedTuple):
    """Most turns at once: over all vendors, for a vendor that isn't named, and per vendor."""

    total: int
    default: int
    per_vendor: Mapping[str, int]

    def args(self) -> list[Any]:
        """As the scripts take them."""
        return [self.total, self.default, *(x for pair in sorted(self.per_vendor.items()) for x in pair)]


class Coord(Protocol):
    """The contract; `RedisCoord` is the real one, `fake.FakeCoord` the stand-in for simulation."""

    def incarnation(self) -> str: ...
    def clock(self) -> int: ...
    def append(
        self,
        log: str,
        events: Sequence[tuple[str, bytes]],
        *,
        holder: Holder | None = None,
        key: Key | None = None,
        change: StateChange | None = None,
    ) -> Appended: ...
    def delta(self, log: str, holder: Holder, payload: bytes) -> Answer: ...
    def look(self, log: str) -> Look | None: ...
    def tail(self, log: str, start: int = -1, count: int = 1024) -> Tail | None: ...
    def archived(self, log: str, gen: int, upto: int, astate: bytes, asha: str) -> Answer: ...
    def seed(self, log: str, seed: Seed) -> Answer: ...
    def claim(self, worker: str, lease_ms: int, affinity_ms: int, vendors: Sequence[str], caps: Caps) -> Claimed | None: ...
    def activate(self, log: str, holder: Holder, lease_ms: int) -> Answer: ...
    def begin(self, log: str, holder: Holder, caps: Caps) -> Answer: ...
    def renew(self, worker: str, lease_ms: int, held: Sequence[tuple[str, int]]) -> list[Answer]: ...
    def release(self, log: str, holder: Holder, force: bool = False) -> Answer: ...
    def takeover(self, worker: str, lease_ms: int) -> Claimed | None: ...
    def enter(self, group: str, log: str) -> bool: ...
    def revoke(self, log: str, grace_ms: int) -> Answer: ...
    def shelve(self, log: str, worker: str, ms: int) -> Answer: ...
    def forget(self, idle_ms: int) -> Forgotten | None: ...
    def heads(self, logs: Sequence[str]) -> list[tuple[int, int] | None]: ...
    def ring(self, tenant: str, item: str) -> None: ...


class RedisCoord:
    """`Coord` on a real Redis. Every method raises Unavailable if it can't be reached; the call may then have taken effect."""

    def __init__(self, scripts: Scripts) -> None:
        self._run = scripts.run
        self.prefix = scripts.prefix
        self.client = scripts.client
        self.pushes = Pushes(scripts.client, scripts.prefix.strip("{}"))

    def channel(self, log: str) -> str:
        """The pub/sub channel of a log: `E gen first` and event lines, `D gen` and delta lines, or `R` (lease revoked)."""
        return f"{self.prefix}:ch:{log}"

    @property
    def wake_channel(self) -> str:
        """The channel on which a message says that something may be claimable."""
        return f"{self.prefix}:wake"

    def incarnation(self) -> str:
        """The server's run id and boot key: changes with every restart, failover and flush."""
        return str(self._run("incarnation").decode())

    def clock(self) -> int:
        """Unix milliseconds on the one clock that every `not_before` and deadline here is on."""
        return int(self._run("clock"))

    def append(
        self,
        log: str,
        events: Sequence[tuple[str, bytes]],
        *,
        holder: Holder | None = None,
        key: Key | None = None,
        change: StateChange | None = None,
    ) -> Appended:
        """Appends `(event id, wire bytes)` pairs as one batch. OK, COLD, FENCED, DUP or STALE; only OK changes anything."""
        reply = self._run(
            "append",
            log,
            *((holder.worker, holder.epoch) if holder else ("", "")),
            *(key or ("", "")),
            *((change.expect, change.state, change.status, change.not_before) if change else ("", "", "", 0)),
            len(events),
            *(part for event in events for part in event),
        )
        answer = Answer(reply[0].decode())
        if answer is Answer.OK:
            return Appended(answer, int(reply[1]), int(reply[2]), reply[3].decode())
        if answer is Answer.DUP:
            return Appended(answer, int(reply[1]), int(reply[2]), "", reply[3].decode(), reply[4].decode())
        return Appended(answer)

    def delta(self, log: str, holder: Holder, payload: bytes) -> Answer:
        """Publishes delta lines under the lease. OK, FENCED or COLD."""
        return Answer(self._run("delta", log, holder.worker, holder.epoch, payload)[0].decode())

    def look(self, log: str) -> Look | None:
        """The head and state, None if COLD."""
        r = self._run("look", log)
        if r[0] != b"OK":
            return None
        return Look(int(r[1]), int(r[2]), r[3].decode(), r[4], int(r[5]), (r[6] or b"").decode(), (r[7] or b"").decode())

    def tail(self, log: str, start: int = -1, count: int = 1024) -> Tail | None:
        """Up to `count` entries from `start` (-1: from the archived head), None if COLD."""
        r = self._run("tail", log, start, count)
        if r[0] != b"OK":
            return None
        return Tail(int(r[1]), int(r[2]), int(r[3]), r[4].decode(), r[5], r[6], r[7].decode(), int(r[8]), r[9])

    def archived(self, log: str, gen: int, upto: int, astate: bytes, asha: str) -> Answer:
        """Moves the archived head. OK, COLD, or OLD if it is there already (or of another generation)."""
        return Answer(self._run("archived", log, gen, upto, astate, asha)[0].decode())

    def seed(self, log: str, seed: Seed) -> Answer:
        """Binds a recovered log to this incarnation. OK, HAVE (someone did) or WRONG_INC (the server changed meanwhile)."""
        pairs = [x for table in (seed.keys, seed.ids) for pair in table.items() for x in pair]
        return Answer(self._run("seed", log, *seed[:-2], len(seed.keys), len(seed.ids), *pairs)[0].decode())

    def claim(self, worker: str, lease_ms: int, affinity_ms: int, vendors: Sequence[str], caps: Caps) -> Claimed | None:
        """Reserves the oldest claimable log for `worker`, with epoch 0. None if there is none."""
        r = self._run("claim", worker, lease_ms, affinity_ms, len(vendors), *vendors, *caps.args())
        if r[0] == b"RETRY":
            return Claimed(retry_ms=int(float(r[1])))
        return Claimed(r[1].decode(), r[2].decode(), int(r[3]), "queued") if r[0] == b"OK" else None

    def activate(self, log: str, holder: Holder, lease_ms: int) -> Answer:
        """Turns a reservation into a lease with the holder's epoch. OK, COLD or FENCED."""
        return Answer(self._run("activate", log, holder.worker, holder.epoch, lease_ms)[0].decode())

    def begin(self, log: str, holder: Holder, caps: Caps) -> Answer:
        """Takes a slot for the holder's next turn. OK, FULL (ask again later), COLD or FENCED."""
        return Answer(self._run("begin", log, holder.worker, holder.epoch, *caps.args())[0].decode())

    def renew(self, worker: str, lease_ms: int, held: Sequence[tuple[str, int]]) -> list[Answer]:
        """Renews each `(log, epoch)`; an answer for each: OK, COLD or FENCED."""
        flat = [x for pair in held for x in pair]
        return [Answer(a.decode()) for a in self._run("renew", worker, lease_ms, *flat)]

    def release(self, log: str, holder: Holder, force: bool = False) -> Answer:
        """Gives the lease back. OK, WORK (an input waits), OPEN (a turn is open), COLD or FENCED."""
        return Answer(self._run("release", log, holder.worker, holder.epoch, int(force))[0].decode())

    def takeover(self, worker: str, lease_ms: int) -> Claimed | None:
        """Reserves the log whose lease expired first, None if none did."""
        r = self._run("takeover", worker, lease_ms)
        return Claimed(r[1].decode(), r[2].decode(), int(r[3]), r[4].decode()) if r[0] == b"OK" else None

    def enter(self, group: str, log: str) -> bool:
        """Whether `log` may work in what the logs of `group` share now; if not, the one that is there was asked to let go."""
        return bool(self._run("enter", group, log)[0] == b"OK")

    def revoke(self, log: str, grace_ms: int) -> Answer:
        """Fences whoever holds the lease; the sweep settles the log after `grace_ms` if nobody else does. OK or COLD."""
        return Answer(self._run("revoke", log, grace_ms)[0].decode())

    def ring(self, tenant: str, item: str) -> None:
        """People may have to be told of an inbox item."""
        self.pushes.ring(tenant, item)

    def shelve(self, log: str, worker: str, ms: int) -> Answer:
        """Puts a log aside for `ms` that `worker` has reserved (epoch 0) and can do nothing with. OK, COLD or FENCED."""
        return Answer(self._run("shelve", log, worker, ms)[0].decode())

    def forget(self, idle_ms: int) -> Forgotten | None:
        """Drops one settled, archived log that was idle for `idle_ms` from Redis, or names one that would be but for its tail."""
        r = self._run("forget", idle_ms)
        return None if r[0] == b"NONE" else Forgotten(r[1].decode(), r[0] == b"BEHIND")

    def heads(self, logs: Sequence[str]) -> list[tuple[int, int] | None]:
        """Generation and next offset of each log, None if COLD."""
        flat = [int(x) for x in self._run("heads", *logs)]
        return [None if gen < 0 else (gen, next) for gen, next in zip(flat[::2], flat[1::2], strict=True)]
