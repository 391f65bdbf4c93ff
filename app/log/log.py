"""The log: append, archive, read. One class serves every session and every tenant's workspace.

Rules: an input is acknowledged when its own event id is seen in a segment (`settle`); the archive is a pure function of the
tail, so anyone may archive at any time; a read takes history from segments and the rest from the tail, and trusts dense offsets
only. `docs/log.md` tells the whole protocol.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

import orjson
import structlog

from app.coord.coord import Appended, Coord, Holder, Key, Look, StateChange, Tail
from app.core import chain as chains
from app.core.archive import Verdict, compare
from app.core.cursor import Position, encode
from app.core.errors import ByreError, Corrupt, CursorUnavailable, Missing, Unavailable
from app.core.session import State
from app.log import events, fold, heads
from app.log.heads import LogHead
from app.log.recover import Recovery, current
from app.log.segment import Fence, Segment, unmark
from app.log.segment import encode as encode_segment
from app.log.segments import Segments
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace, put_once

ROUNDS = 64
APPEND_TRIES = 3
TAIL_COUNT = 4096
HEAD_SECONDS = 60.0
HEADS = 4096
LATE_SECONDS = 600.0
"""A PUT answered later than this after the chain was read proves nothing until it is read again: its key may have been one that
compaction or `byre gc` had freed. They free a key only a day after the chain has said that nobody may want it any more."""

T = TypeVar("T")

logger = structlog.get_logger(__name__)


class Place(NamedTuple):
    """Where an event was appended."""

    gen: int
    offset: int
    id: str


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
        self._heads: OrderedDict[LogName, tuple[LogHead, float, float]] = OrderedDict()

    # The head object

    def head(self, log: LogName, gen: int | None = None) -> LogHead:
        """The head object, from a short cache if it knows generation `gen` as the last one. Raises Missing, Unavailable."""
        hit = self._heads.get(log)
        if hit and self.pace.now() - hit[1] < HEAD_SECONDS and (gen is None or hit[0].last.gen == gen):
            return hit[0]
        return self._fresh(log)

    def keep(self, log: LogName, head: LogHead, asked: float | None = None) -> LogHead:
        """Remembers a head that was read or written just now; `asked` is `pace.now()` of before, without it no PUT relies on it."""
        now = self.pace.now()
        self._heads[log] = (head, now, -math.inf) if asked is None else (head, asked, asked)
        while len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return head

    def _fresh(self, log: LogName) -> LogHead:
        asked = self.pace.now()
        return self.keep(log, heads.load(self.store, log, self.pace), asked)

    def _proof(self, log: LogName, gen: int) -> tuple[LogHead, float]:
        """A head that was asked for not long ago, and when: what a PUT into generation `gen` relies on."""
        hit = self._heads.get(log)
        if hit and self.pace.now() - hit[2] < LATE_SECONDS / 2 and hit[0].last.gen == gen:
            return hit[0], hit[2]
        asked = self.pace.now()
        return self._fresh(log), asked

    def _freeze(self, log: LogName, error: Corrupt) -> None:
        """Makes everybody refuse a log of which an object fails its checksum. If the store fails the next reader does it."""
        logger.error("log frozen: an object of it is damaged", log=log.text, object=error.key, error=error.message)
        self._heads.pop(log, None)
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
        return current(self.segments, log, self._fresh(log).chain)[0]

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

    def archive(self, log: LogName, until: Place | None = None) -> bool:
        """Copies the tail into segments until all of it, or the event `until`, is there.

        False: `until` is not in the log (any more), append it again with the same id. Raises Unavailable if the store or Redis can't
        settle it in bounded time.
        """
        for _ in range(ROUNDS):
            tail = self.coord.tail(log.text, -1, TAIL_COUNT)
            if tail is None:
                if until is None:
                    return False
                if self.has(log, until):
                    return True
                self.recovery.recover(log)
                return self.has(log, until)
            if until and (tail.gen != until.gen or until.offset < tail.arch):
                return self.has(log, until, tail.gen)
            done = self._archive_once(log, tail, until)
            if done is not None:
                return done
        raise Unavailable("the session's log is being written too fast to be archived")

    def _archive_once(self, log: LogName, tail: Tail, until: Place | None) -> bool | None:
        head, asked = self._proof(log, tail.gen)
        if head.last.gen != tail.gen:
            self.recovery.recover(log, fenced=tail.gen)
            return self.has(log, until) if until else False
        if tail.entries and tail.arch >= head.last.boundary:
            segment = self._segment(log, tail)
            body, digest = encode_segment(segment)
            segment = dataclasses.replace(segment, sha256=digest)
            key = keys.segment(log, tail.gen, tail.arch)
            try:
                put_once(self.store, key, body, if_none_match=True, put_id=segment.put_id, pace=self.pace)
            except PreconditionFailed:
                pass
            else:
                if self.pace.now() - asked > LATE_SECONDS and not self._still_open(log, tail):
                    return None
                self.segments.remember(key, segment)
                self._advance(log, segment)
                if until:
                    return True if until.offset < segment.end else None
                return True if segment.end == tail.next else None
        elif not tail.entries and until is None:
            return True
        return self._go_on(log, head, tail, until)

    def _go_on(self, log: LogName, head: LogHead, tail: Tail, until: Place | None) -> bool | None:
        """What is at the archived head already, by another archiver or compacted since: is it ours, and does it hold `until`?"""
        found = self._at_head(log, head, tail)
        if found is None:
            return self.has(log, until) if until else None
        if isinstance(found, Fence):
            self.recovery.recover(log, fenced=tail.gen)
            return self.has(log, until) if until else False
        wanted = until.id if until else None
        verdict = compare(list(map(events.id_of, found.lines)), list(map(events.id_of, tail.entries)), wanted)
        if verdict is Verdict.RECOVER or (found.end > tail.next and not self._reaches(log, tail.gen, found.end)):
            self.recovery.recover(log, fenced=tail.gen)
            return self.has(log, until) if until else False
        self._advance(log, found)
        return True if verdict is Verdict.DONE else None

    def _at_head(self, log: LogName, head: LogHead, tail: Tail) -> Segment | Fence | None:
        if tail.arch >= head.last.boundary:
            return self.segments.load(log, tail.gen, tail.arch)
        # Redis wasn't told of the last archives, and they have been compacted
        found = self.segments.find(log, head.last, tail.arch)
        if found is None:
            return None
        return dataclasses.replace(found, first=tail.arch, lines=found.lines[tail.arch - found.first :])

    def _segment(self, log: LogName, tail: Tail) -> Segment:
        state = orjson.loads(tail.astate)
        if log.session:
            state = fold.over(State.from_json(state), tail.gen, tail.arch, tail.entries).to_json()
        prev, total = unmark(tail.asha)
        total += sum(map(len, tail.entries))
        return Segment(tail.gen, tail.arch, tail.entries, prev, state, self.pace.token(), total)

    def _advance(self, log: LogName, segment: Segment) -> None:
        try:
            self.coord.archived(log.text, segment.gen, segment.end, orjson.dumps(segment.state), segment.mark)
        except Unavailable:
            # only a hint: the next archiver finds the segment and goes on from it
            logger.warning("archived head not moved: Redis can't be reached", log=log.text)

    def _reaches(self, log: LogName, gen: int, offset: int) -> bool:
        """Whether the tail has grown to `offset` since it was read; if not, it lacks what was archived from it."""
        look = self.coord.look(log.text)
        return look is not None and look.gen == gen and look.next >= offset

    def _still_open(self, log: LogName, tail: Tail) -> bool:
        head = self._fresh(log)
        return head.last.gen == tail.gen and head.last.boundary <= tail.arch

    def has(self, log: LogName, place: Place, gen: int | None = None) -> bool:
        """Whether this very event is in a segment of the log, at that place. `gen`: the generation that Redis has, if it is known."""
        head = self._fresh(log) if gen is None else self.head(log, gen)
        if not chains.covers(head.chain, Position(place.gen, place.offset), None):
            return False
        found = self.segments.find(log, chains.owner(head.chain, place.offset), place.offset)
        return found is not None and events.id_of(found.lines[place.offset - found.first]) == place.id

    # Reading

    def read(self, log: LogName, after: Position, limit: int) -> Page:
        """Up to `limit` entries after a place. Raises CursorUnavailable if `after` isn't in this log (any more); Missing;
        Unavailable if Redis can't be reached and nothing after it is archived."""
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
        return current(self.segments, log, self.keep(log, heads.load(self.store, log, self.pace)).chain)[2]

    def at(self, log: LogName, position: Position) -> bytes:
        """The wire line at a place. Raises Missing if there is none."""
        for fresh in (False, True):
            # the head that is remembered may not know of the generation that holds the event before it
            head = self._fresh(log) if fresh else self.head(log)
            try:
                page = self.read(log, chains.at(head.chain, position.offset - 1), 1)
            except CursorUnavailable:
                continue
            if page.entries and page.entries[0].position == position:
                return page.entries[0].raw
        raise Missing("no such event")

    def _read_archive(self, log: LogName, after: Position, limit: int, reachable: bool) -> Page:
        head = self._fresh(log)
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
