"""Archiving: the tail of a log becomes segments, and an event's being in one is what its acknowledgement says.

Rules: the archive is a pure function of the tail, so anyone may archive at any time; a segment is created once, and whoever comes second
goes on from what the first one made, if that is the same history; a fence, or another history, means that the generation is over.
Nothing is concluded by a head that is too old (`headcache.py`).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import orjson
import structlog

from app.coord.coord import Coord, Tail
from app.core import chain as chains
from app.core.archive import Verdict, compare
from app.core.cursor import Position
from app.core.errors import Unavailable
from app.core.session import State
from app.log import events, fold
from app.log.headcache import HeadCache
from app.log.heads import LogHead
from app.log.recover import Recovery
from app.log.segment import Fence, Segment, unmark
from app.log.segment import encode as encode_segment
from app.log.segments import Segments
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace, put_once

ROUNDS = 64
TAIL_COUNT = 4096

logger = structlog.get_logger(__name__)


class Place(NamedTuple):
    """Where an event was appended."""

    gen: int
    offset: int
    id: str


@dataclasses.dataclass(frozen=True, slots=True)
class Archiver:
    """Archives the logs of one store from the tails in one Redis. Thread-safe."""

    store: Store
    coord: Coord
    segments: Segments
    recovery: Recovery
    heads: HeadCache
    pace: Pace = REAL

    def archive(self, log: LogName, until: Place | None = None, gen: int | None = None) -> bool:
        """Copies the tail into segments until all of it, or the event `until`, is there.

        False: `until` is not in the log (any more), append it again with the same id; or the log is cold, or not in generation `gen`
        (any more), so what was seen in it may be lost. Raises Unavailable if the store or Redis can't
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
            if gen is not None and tail.gen != gen:
                return False
            if until and (tail.gen != until.gen or until.offset < tail.arch):
                return self.has(log, until, tail.gen)
            done = self.once(log, tail, until)
            if done is not None:
                return done
        raise Unavailable("the session's log is being written too fast to be archived")

    def has(self, log: LogName, place: Place, gen: int | None = None) -> bool:
        """Whether this very event is in a segment of the log, at that place. `gen`: the generation that Redis has, if it is known."""
        return self.heads.timely(lambda: self._has(log, place, gen))

    def _has(self, log: LogName, place: Place, gen: int | None) -> bool:
        head = self.heads.fresh(log) if gen is None else self.heads.head(log, gen)
        if not chains.covers(head.chain, Position(place.gen, place.offset), None):
            return False
        found = self.segments.find(log, chains.owner(head.chain, place.offset), place.offset)
        return found is not None and events.id_of(found.lines[place.offset - found.first]) == place.id

    def once(self, log: LogName, tail: Tail, until: Place | None) -> bool | None:
        """One segment of what `tail` shows: whether `until` (or all) is archived by now, None if it isn't known yet."""
        head, asked = self.heads.proof(log, tail.gen)
        if head.last.gen != tail.gen:
            return self._over(log, tail, until)
        if not tail.entries and until is None:
            return True
        made = self._create(log, tail) if tail.entries and tail.arch >= head.last.boundary else None
        found = made or self._at_head(log, head, tail)
        if self.heads.late(asked) and not self._still_open(log, tail):
            return None
        if made:
            self.segments.remember(keys.segment(log, tail.gen, tail.arch), made)
            self._advance(log, made)
            return True if (until.offset < made.end if until else made.end == tail.next) else None
        return self._go_on(log, found, tail, until)

    def _create(self, log: LogName, tail: Tail) -> Segment | None:
        """The segment of `tail`, None if something is at its place already."""
        segment = self._segment(log, tail)
        body, digest = encode_segment(segment)
        key = keys.segment(log, tail.gen, tail.arch)
        try:
            put_once(self.store, key, body, if_none_match=True, put_id=segment.put_id, pace=self.pace)
        except PreconditionFailed:
            return None
        return dataclasses.replace(segment, sha256=digest)

    def _go_on(self, log: LogName, found: Segment | Fence | None, tail: Tail, until: Place | None) -> bool | None:
        """What is at the archived head already, by another archiver or compacted since: is it ours, and does it hold `until`?"""
        if found is None:
            return self.has(log, until) if until else None
        if isinstance(found, Fence):
            return self._over(log, tail, until)
        wanted = until.id if until else None
        verdict = compare(list(map(events.id_of, found.lines)), list(map(events.id_of, tail.entries)), wanted)
        if verdict is Verdict.RECOVER or (found.end > tail.next and not self._reaches(log, tail.gen, found.end)):
            return self._over(log, tail, until)
        self._advance(log, found)
        return True if verdict is Verdict.DONE else None

    def _over(self, log: LogName, tail: Tail, until: Place | None) -> bool:
        """The generation of `tail` has ended: what it archived is what there is of it."""
        self.recovery.recover(log, fenced=tail.gen)
        return self.has(log, until) if until else False

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
        """Whether the archived head of `tail` was a place to write to until just now. The fresh head is proof only if it came in time."""
        asked = self.pace.now()
        head = self.heads.fresh(log)
        return not self.heads.late(asked) and head.last.gen == tail.gen and head.last.boundary <= tail.arch
