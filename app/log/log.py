"""The log: append, archive, read. One class serves every session and every tenant's workspace.

Rules: an input is acknowledged when its own event id is seen in a segment (`archiver.py`); a read takes history from segments and the
rest from the tail, and trusts dense offsets only. `docs/log.md` tells the whole protocol.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import orjson
import structlog

from app.coord.coord import Appended, Coord, Holder, Key, Look, StateChange
from app.core import chain as chains
from app.core.cursor import Position, encode
from app.core.errors import ByreError, Corrupt, CursorUnavailable, Missing, Unavailable
from app.core.session import State
from app.log import heads
from app.log.archiver import Archiver, Place
from app.log.headcache import HeadCache
from app.log.heads import LogHead
from app.log.recover import Recovery, current
from app.log.segments import Segments
from app.store.contract import Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace

APPEND_TRIES = 3

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class Entry(NamedTuple):
    """An event of the log: where it is, and its wire line."""

    position: Position
    raw: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Entries in order. `end`: nothing followed when it was read."""

    entries: list[Entry]
    end: bool


@dataclasses.dataclass(frozen=True, slots=True)
class View:
    """What a decision is made on: the folded state and the version that the append must carry."""

    state: State
    version: str
    gen: int
    next: int
    arch: int


class Log:
    """All logs of one deployment. Thread-safe."""

    def __init__(self, store: Store, coord: Coord, grace_ms: int, pace: Pace = REAL) -> None:
        self.store, self.coord, self.pace = store, coord, pace
        self.segments = Segments(store, pace)
        self.recovery = Recovery(store, coord, self.segments, grace_ms, pace)
        self.segments.damaged = self._freeze
        self.heads = HeadCache(store, pace)
        self.archiver = Archiver(store, coord, self.segments, self.recovery, self.heads, pace)

    # The head object

    def head(self, log: LogName, gen: int | None = None) -> LogHead:
        """The head object, from a short cache if it knows generation `gen` as the last one. Raises Missing, Unavailable."""
        return self.heads.head(log, gen)

    def keep(self, log: LogName, head: LogHead, asked: float | None = None) -> LogHead:
        """Remembers a head that was read or written just now; `asked` is `pace.now()` of before, without it no PUT relies on it."""
        return self.heads.keep(log, head, asked)

    def _freeze(self, log: LogName, error: Corrupt) -> None:
        """Makes everybody refuse a log of which an object fails its checksum. If the store fails the next reader does it."""
        logger.error("log frozen: an object of it is damaged", log=log.text, object=error.key, error=error.message)
        self.heads.drop(log)
        try:
            heads.freeze(self.store, log, error.key, self.pace)
        except ByreError as e:
            logger.warning("log not frozen", log=log.text, why=e.message)

    # State

    def view(self, log: LogName) -> View:
        """State and version for a decision; recovers a cold log. Raises Missing, Corrupt, Unavailable."""
        for _ in range(4):
            look = self.coord.look(log.text)
            if look:
                return _view(look)
            self.recovery.recover(log)
        raise Unavailable("the session's log can't be recovered now")

    def state(self, log: LogName) -> State:
        """The folded state, from Redis, or from the archive if the log is cold or Redis can't be reached. Changes nothing."""
        try:
            look = self.coord.look(log.text)
        except Unavailable:
            look = None
        if look:
            return _state(look.state)
        return self.heads.timely(lambda: current(self.segments, log, self.heads.fresh(log).chain)[0])

    # Writing

    def append(
        self,
        log: LogName,
        batch: Sequence[tuple[str, bytes]],
        *,
        holder: Holder | None = None,
        key: Key | None = None,
        change: StateChange | None = None,
    ) -> Appended:
        """`Coord.append`, repeated with the same ids where an answer was lost. Raises Unavailable if it stays unknown."""
        return self._patiently(lambda: self.coord.append(log.text, batch, holder=holder, key=key, change=change))

    def clock(self) -> int:
        """Unix milliseconds on Redis's clock: what is parked until a time is parked by it, whatever a worker's own clock says."""
        return self._patiently(self.coord.clock)

    def _patiently(self, call: Callable[[], T]) -> T:
        for attempt in range(APPEND_TRIES):
            try:
                return call()
            except Unavailable:
                if attempt == APPEND_TRIES - 1:
                    raise
                self.pace.sleep(0.1 * 2**attempt * (1 + self.pace.random()))
        raise AssertionError("unreachable")

    def archive(self, log: LogName, until: Place | None = None, gen: int | None = None) -> bool:
        """`Archiver.archive`."""
        return self.archiver.archive(log, until, gen)

    # Reading

    def read(self, log: LogName, after: Position, limit: int) -> Page:
        """Up to `limit` entries after a place. Raises CursorUnavailable if `after` isn't in this log (any more); Missing;
        Unavailable if Redis can't be reached and nothing after it is archived."""
        return self.heads.timely(lambda: self._read(log, after, limit))

    def _read(self, log: LogName, after: Position, limit: int) -> Page:
        start = after.offset + 1
        try:
            tail = self.coord.tail(log.text, max(start, 0), limit)
        except Unavailable:
            tail = None
            reachable = False
        else:
            reachable = True
        if tail is None:
            return self._read_archive(log, after, limit, reachable)
        head = self.head(log, tail.gen)
        if head.last.gen != tail.gen:
            # a recovery or restore is half way: what is in the store counts
            return self._read_archive(log, after, limit, reachable=True)
        self._check(log, head, after, tail.next)
        if tail.entries and start >= head.last.start:
            taken = [Entry(Position(tail.gen, start + i), raw) for i, raw in enumerate(tail.entries)]
            return Page(taken, start + len(taken) == tail.next)
        taken = self._from_segments(log, head, max(start, 0), tail.arch, limit)
        if len(taken) == limit:
            return Page(taken, taken[-1].position.offset + 1 == tail.next)
        start = max(start, tail.arch)
        if start < tail.next:
            rest = self.coord.tail(log.text, start, limit - len(taken))
            if rest is None or rest.gen != tail.gen:
                return Page(taken, False)
            taken += [Entry(Position(rest.gen, start + i), raw) for i, raw in enumerate(rest.entries)]
            return Page(taken, start + len(rest.entries) == rest.next)
        return Page(taken, True)

    def position(self, log: LogName, offset: int) -> Position:
        """The position of an offset, for logs whose cursors are plain numbers. Raises Missing."""
        look = self.coord.look(log.text)
        return chains.at(self.head(log, look.gen if look else None).chain, offset)

    def next(self, log: LogName) -> int:
        """The offset that the next event gets, as far as the log is known without being changed. Raises Missing."""
        look = self.coord.look(log.text)
        if look:
            return look.next
        return self.heads.timely(lambda: current(self.segments, log, self.heads.fresh(log).chain)[2])

    def at(self, log: LogName, position: Position) -> bytes:
        """The wire line at a place. Raises Missing if there is none."""
        for fresh in (False, True):
            # the head that is remembered may not know of the generation that holds the event before it
            head = self.heads.fresh(log) if fresh else self.head(log)
            try:
                page = self.read(log, chains.at(head.chain, position.offset - 1), 1)
            except CursorUnavailable:
                continue
            if page.entries and page.entries[0].position == position:
                return page.entries[0].raw
        raise Missing("no such event")

    def _read_archive(self, log: LogName, after: Position, limit: int, reachable: bool) -> Page:
        head = self.heads.fresh(log)
        upto = self.segments.head(log, head.last)[0]
        if not reachable and after.offset + 1 >= upto and upto > 0:
            raise Unavailable("past the archive, and Redis can't be reached")
        self._check(log, head, after, upto)
        taken = self._from_segments(log, head, after.offset + 1, upto, limit)
        return Page(taken, len(taken) < limit or taken[-1].position.offset + 1 == upto)

    def _from_segments(self, log: LogName, head: LogHead, start: int, upto: int, limit: int) -> list[Entry]:
        taken: list[Entry] = []
        if start >= upto:
            return taken
        for segment in self.segments.covering(log, head.chain, start, upto):
            for offset, raw in enumerate(segment.lines, segment.first):
                if len(taken) == limit or offset >= upto:
                    return taken
                taken.append(Entry(Position(segment.gen, offset), raw))
        return taken

    def _check(self, log: LogName, head: LogHead, after: Position, next_offset: int) -> None:
        if chains.covers(head.chain, after, next_offset):
            return
        good = chains.last_good(head.chain, after)
        if good.offset >= next_offset:
            good = chains.at(head.chain, next_offset - 1)
        raise CursorUnavailable(
            "the cursor isn't in this session's log: what followed the earliest good one was lost, or it never was",
            encode(log.session or log.tenant, good),
        )


def now_text(unix: float | None = None) -> str:
    """RFC 3339 in UTC with microseconds."""
    seconds = time.time() if unix is None else unix
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1e6):06d}Z"


def _state(raw: bytes) -> State:
    return State.from_json(orjson.loads(raw))


def _view(look: Look) -> View:
    return View(_state(look.state), look.version, look.gen, look.next, look.arch)
