"""Compaction: many small segments of a log become a few large ones.

Rules, each against a writer that stalls for hours in the middle of it:
- a large segment begins where the one before it ended, at first where its generation does, and is created once. So all who compact a
  log make one row of large segments, whoever dies or comes late; who meets one goes on from its end;
- it holds whole small segments that its generation covers, the checksum of the last one, and its state; it and its key index are read
  back before anything relies on them;
- then the generation's `boundary` rises in the head object by CAS, and that is read back too. From then on readers take what is below
  the boundary from large segments only, and an archiver's, recoverer's or restorer's PUT below it proves nothing (`log.py`);
- small segments below are left for `byre gc`, which deletes them a day later. Fences are never merged and never deleted.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import structlog

from app.core import chain as chains
from app.core.chain import Generation
from app.core.errors import Corrupt, Unavailable
from app.log import heads, keyindex
from app.log.heads import LogHead
from app.log.segment import Segment, encode, unmark
from app.log.segments import Segments
from app.store import keys
from app.store.contract import PreconditionFailed, Store
from app.store.keys import LogName
from app.store.puts import Pace, put_once

LARGE_BYTES = 4 * 2**20
"""Plain bytes at which a large segment is full."""
LARGE_EVENTS = 20_000
"""Events at which it is full: of very small ones more wouldn't fit into a reader's cache."""
SMALL_SEGMENTS = 64
"""How many small segments a log may have before it is worth the requests."""
DAY = 86_400
LOOKED_AT = 16
"""Generations whose small segments are counted at most, the newest first."""

logger = structlog.get_logger(__name__)


class Compacted(NamedTuple):
    """What a run did: `small` segments are now in `large` ones, of `size` plain bytes."""

    small: int
    large: int
    size: int


class Archive(Protocol):
    """What compaction needs of a `Log`: its store, and the head object with its cache."""

    store: Store
    segments: Segments
    pace: Pace

    def head(self, log: LogName, gen: int | None = None) -> LogHead: ...
    def keep(self, log: LogName, head: LogHead, asked: float | None = None) -> LogHead: ...


class Compactor:
    """Compacts logs. Any number of them may run at once, also on one log. `now` gives unix seconds."""

    def __init__(
        self,
        log: Archive,
        now: Callable[[], float] = time.time,
        *,
        large_bytes: int = LARGE_BYTES,
        large_events: int = LARGE_EVENTS,
        small_segments: int = SMALL_SEGMENTS,
    ) -> None:
        self._log, self._now = log, now
        self._large_bytes, self._large_events, self._small_segments = large_bytes, large_events, small_segments

    def due(self, name: LogName, upto: int = 2**62) -> bool:
        """Whether the log, archived up to offset `upto` if that is known, has so many small segments that compacting pays.

        Asks the store only if there are events enough above the boundaries; then for a listing per generation that has some.
        Raises Missing, Corrupt, Unavailable.
        """
        chain = self._log.head(name).chain
        ends = [(gen, chains.end(chain, gen.gen)) for gen in chain]
        open_spans = [(gen, upto if end is None else end) for gen, end in ends if (upto if end is None else end) > gen.boundary]
        if sum(end - gen.boundary for gen, end in open_spans) <= self._small_segments:
            return False
        found = 0
        for gen, end in open_spans[: -LOOKED_AT - 1 : -1]:
            found += sum(first < end for first in self._log.segments.page(name, gen, self._small_segments + 1))
            if found > self._small_segments:
                return True
        return False

    def run(self, name: LogName) -> Compacted:
        """Compacts all that can be. Raises Missing, Corrupt, Unavailable: what was done by then is of use to the next run."""
        head = heads.load(self._log.store, name, self._log.pace)
        rises: dict[int, int] = {}
        small = large = size = 0
        for gen in head.chain:
            for made, count in self._merge(name, gen, chains.end(head.chain, gen.gen)):
                rises[gen.gen] = made.end
                small, large, size = small + count, large + 1, size + sum(map(len, made.lines))
        if rises:
            self._raise(name, rises)
            logger.info("log compacted", log=name.text, small=small, large=large, bytes=size)
        return Compacted(small, large, size)

    def _raise(self, name: LogName, rises: dict[int, int]) -> None:
        now = int(self._now())

        def rise(head: LogHead) -> dict[str, Any] | None:
            chain = tuple(
                gen.risen(rises[gen.gen], now, now - DAY) if rises.get(gen.gen, -1) > gen.boundary else gen
                for gen in head.chain
            )
            return None if chain == head.chain else {"chain": [gen.to_json() for gen in chain]}

        heads.change(self._log.store, name, rise, self._log.pace)
        asked = self._log.pace.now()
        head = self._log.keep(name, heads.load(self._log.store, name, self._log.pace), asked)
        if any(gen.boundary < rises.get(gen.gen, -1) for gen in head.chain):
            raise Unavailable("the boundary of a compacted log is not what was written")

    def _merge(self, name: LogName, gen: Generation, limit: int | None) -> Iterator[tuple[Segment, int]]:
        """Large segments of `gen` above its boundary, made now or left by somebody who got no further, and of how many small ones."""
        at = gen.boundary
        while True:
            large = self._log.segments.load(name, gen.gen, at, compacted=True)
            count = 0
            if large is None:
                batch, more = self._gather(name, gen, at, limit)
                if not batch or (len(batch) == 1 and not more):
                    return
                large, count = self._create(name, _merged(batch, self._log.pace.token())), len(batch)
            if not isinstance(large, Segment):
                raise Corrupt("a compacted segment is none", keys.compacted(name, gen.gen, at))
            self._index(name, large)
            yield large, count
            at = large.end

    def _gather(self, name: LogName, gen: Generation, at: int, limit: int | None) -> tuple[list[Segment], bool]:
        """Small segments from `at` on for one large one, and whether another follows them.

        Raises Corrupt if they aren't one chain: what is damaged is never made to look whole.
        """
        batch: list[Segment] = []
        size = events = 0
        while True:
            found = self._log.segments.load(name, gen.gen, at)
            if not isinstance(found, Segment) or (limit is not None and found.end > limit):
                return batch, False
            size, events = size + sum(map(len, found.lines)), events + len(found.lines)
            if batch and (size > self._large_bytes or events > self._large_events):
                return batch, True
            if batch and found.prev != unmark(batch[-1].mark)[0]:
                raise Corrupt("a segment of the log doesn't follow the one before it", keys.segment(name, gen.gen, at))
            batch.append(found)
            at = found.end

    def _create(self, name: LogName, large: Segment) -> Segment:
        """Creates a large segment, or takes the one that somebody else made there first; read back from the store."""
        key = keys.compacted(name, large.gen, large.first)
        body, _ = encode(large)
        try:
            put_once(self._log.store, key, body, if_none_match=True, put_id=large.put_id, pace=self._log.pace)
        except PreconditionFailed:
            logger.info("log is compacted by another, too", log=name.text, object=key)
        found = self._log.segments.load(name, large.gen, large.first, compacted=True)
        if not isinstance(found, Segment) or any(a != b for a, b in zip(found.lines, large.lines, strict=False)):
            raise Corrupt("a compacted segment is not what was merged", key)
        return found

    def _index(self, name: LogName, large: Segment) -> None:
        key = keys.key_index(name, large.gen, large.first)
        body = keyindex.encode(large)
        try:
            put_once(self._log.store, key, body, if_none_match=True, pace=self._log.pace)
        except PreconditionFailed:
            logger.debug("key index is there already", object=key)
        found = self._log.segments.fetch(key)
        end, inputs = keyindex.decode(key, found or b"", large.gen, large.first)
        if end != large.end or list(inputs) != list(keyindex.inputs_of(large)):
            raise Corrupt("a key index of the log is not what its segment says", key)


def _merged(batch: list[Segment], put_id: str) -> Segment:
    """One segment with the events of all, the state and total of the last, and its checksum as `last`."""
    first, last = batch[0], batch[-1]
    lines = [line for segment in batch for line in segment.lines]
    return dataclasses.replace(
        last, first=first.first, lines=lines, prev=first.prev, put_id=put_id, sha256="", last=unmark(last.mark)[0]
    )
