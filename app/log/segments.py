"""Reading the archive: which segments there are, and what is in them.

Rules: a segment never changes once it is there, so both the listing of a generation's first offsets and decoded segments are cached
(bounded); a listing only grows at its end. Contiguity is checked on every read: a hole is Corrupt, never skipped. What fails its
checksum is read once more before it counts as damaged.
"""

from __future__ import annotations

import bisect
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from app.core import chain as chains
from app.core.chain import Chain, Generation
from app.core.errors import Corrupt, Unavailable
from app.log import keyindex
from app.log.heads import fetch
from app.log.keyindex import Input
from app.log.segment import Fence, Segment, decode
from app.store import keys
from app.store.contract import Absent, Store, StoreError
from app.store.keys import LogName
from app.store.puts import REAL, Pace

CACHE_BYTES = 64 * 2**20
CACHE_LISTINGS = 2048
PAGE = 1000

T = TypeVar("T")


class Segments:
    """The archive of all logs in one store. Thread-safe."""

    def __init__(self, store: Store, pace: Pace = REAL, cache_bytes: int = CACHE_BYTES) -> None:
        self._store, self._pace, self._cache_bytes = store, pace, cache_bytes
        self._lock = threading.Lock()
        self._decoded: OrderedDict[str, tuple[Segment, int]] = OrderedDict()
        self._bytes = 0
        self._listings: OrderedDict[tuple[str, str], list[int]] = OrderedDict()
        self.damaged: Callable[[LogName, Corrupt], None] = lambda _log, _error: None
        """Told of each object that fails its checksum, before the reader is."""

    def load(self, log: LogName, gen: int, offset: int, compacted: bool = False) -> Segment | Fence | None:
        """The object whose first offset is `offset`, None if there is none. Raises Corrupt, Unavailable."""
        key = (keys.compacted if compacted else keys.segment)(log, gen, offset)
        with self._lock:
            hit = self._decoded.get(key)
            if hit:
                self._decoded.move_to_end(key)
                return hit[0]

        def understand(body: bytes) -> Segment | Fence:
            read = decode(key, body)
            if isinstance(read, Segment) and (read.gen != gen or read.first != offset):
                raise Corrupt("a segment of the log has another one's content", key)
            return read

        try:
            found = self._read(log, key, understand)
        except Absent:
            return None
        if isinstance(found, Segment):
            self.remember(key, found)
        return found

    def remember(self, key: str, segment: Segment) -> None:
        """Keeps a segment that was read or written just now."""
        size = sum(map(len, segment.lines)) + 200 * len(segment.lines) + 2000
        if size > self._cache_bytes // 4:
            return
        with self._lock:
            if key not in self._decoded:
                self._decoded[key] = (segment, size)
                self._bytes += size
            while self._bytes > self._cache_bytes:
                _, (_, freed) = self._decoded.popitem(last=False)
                self._bytes -= freed

    def firsts(self, log: LogName, gen: Generation, past: int, compacted: bool = False) -> list[int]:
        """First offsets of the generation's objects, ascending; fresh as far as `past` isn't below the last one listed."""
        prefix = (keys.compacted_prefix if compacted else keys.segment_prefix)(log, gen.gen)
        low = gen.start if compacted else max(gen.start, gen.boundary)
        with self._lock:
            known = self._listings.get((prefix, str(low)), [])
        if not known or past >= known[-1]:
            more = list(known)
            after = (keys.compacted if compacted else keys.segment)(log, gen.gen, more[-1]) if more else prefix
            if not more and low > 0:
                after = (keys.compacted if compacted else keys.segment)(log, gen.gen, low - 1)
            while True:
                page = self._list(prefix, after)
                more += [o for o in (keys.parse_segment(k).offset for k in page) if o >= low]
                if len(page) < PAGE:
                    break
                after = page[-1]
            known = more
            with self._lock:
                self._listings[(prefix, str(low))] = known
                self._listings.move_to_end((prefix, str(low)))
                while len(self._listings) > CACHE_LISTINGS:
                    self._listings.popitem(last=False)
        return known

    def page(self, log: LogName, gen: Generation, limit: int) -> list[int]:
        """The first `limit` first offsets of small segments above the boundary, by one listing. Raises Unavailable."""
        prefix, low = keys.segment_prefix(log, gen.gen), max(gen.start, gen.boundary)
        after = keys.segment(log, gen.gen, low - 1) if low > 0 else prefix
        return [keys.parse_segment(key).offset for key in self._list(prefix, after, limit)]

    def find(self, log: LogName, gen: Generation, offset: int) -> Segment | None:
        """The segment of `gen` that holds `offset`, None if it isn't archived."""
        compacted = offset < gen.boundary
        known = self._cached(log, gen, offset, compacted)
        if known:
            return known
        firsts = self.firsts(log, gen, offset, compacted)
        at = bisect.bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        found = self.load(log, gen.gen, firsts[at], compacted)
        return found if isinstance(found, Segment) and found.first <= offset < found.end else None

    def _cached(self, log: LogName, gen: Generation, offset: int, compacted: bool) -> Segment | None:
        prefix = (keys.compacted_prefix if compacted else keys.segment_prefix)(log, gen.gen)
        low = gen.start if compacted else max(gen.start, gen.boundary)
        with self._lock:
            firsts = self._listings.get((prefix, str(low)), [])
            at = bisect.bisect_right(firsts, offset) - 1
            hit = (
                self._decoded.get((keys.compacted if compacted else keys.segment)(log, gen.gen, firsts[at]))
                if at >= 0
                else None
            )
            return hit[0] if hit and hit[0].first <= offset < hit[0].end else None

    def head(self, log: LogName, gen: Generation) -> tuple[int, Segment | None, bool]:
        """The archived head of `gen`, its last segment (None: nothing archived in it), and whether a fence stands at the head."""
        last: Segment | None = None
        low = max(gen.start, gen.boundary)
        firsts = [o for o in self.firsts(log, gen, 2**62) if o >= low]
        for first in reversed(firsts):
            found = self.load(log, gen.gen, first)
            if isinstance(found, Segment):
                last = found
                break
        head = last.end if last else low
        if last is None and gen.boundary > gen.start:
            last = self.find(log, gen, gen.boundary - 1)
        fenced = head in firsts and isinstance(self.load(log, gen.gen, head), Fence)
        return head, last, fenced

    def covering(self, log: LogName, chain: Chain, offset: int, upto: int | None = None) -> Iterator[Segment]:
        """Segments from the one that holds `offset` on, in log order, each cut to what its generation covers.

        Stops at the end of the archive, or before `upto`. Raises Corrupt at a hole.
        """
        while upto is None or offset < upto:
            gen = chains.owner(chain, offset)
            limit = chains.end(chain, gen.gen)
            found = self.find(log, gen, offset)
            if found is None:
                if limit is not None and log.session is None:
                    offset = limit  # a workspace log jumps over numbers in a recovery
                    continue
                if limit is not None:
                    raise Corrupt(f"the log lacks offset {offset}", keys.segment(log, gen.gen, offset))
                return
            end = found.end if limit is None else min(found.end, limit)
            if found.first < offset or end < found.end:
                lines = found.lines[offset - found.first : end - found.first]
                yield dataclasses.replace(found, first=offset, lines=lines)
            else:
                yield found
            offset = end

    def inputs(self, log: LogName, gen: Generation, offset: int) -> tuple[int, Sequence[Input]] | None:
        """The end and the inputs of the large segment that holds `offset`, from its key index; None if there is no index.

        Raises Corrupt, Unavailable.
        """
        firsts = self.firsts(log, gen, offset, compacted=True)
        at = bisect.bisect_right(firsts, offset) - 1
        if at < 0:
            return None
        key = keys.key_index(log, gen.gen, firsts[at])
        try:
            end, found = self._read(log, key, lambda body: keyindex.decode(key, body, gen.gen, firsts[at]))
        except Absent:
            return None
        return (end, found) if end > offset else None

    def fetch(self, key: str) -> bytes | None:
        """The body of an object of the archive as it is in the store now, None if there is none. Raises Unavailable."""
        try:
            return fetch(self._store, key, self._pace)
        except Absent:
            return None

    def _read(self, log: LogName, key: str, understand: Callable[[bytes], T]) -> T:
        """What `understand` makes of an object. Raises Absent, Unavailable, and Corrupt if it fails twice."""
        try:
            return understand(fetch(self._store, key, self._pace))
        except Corrupt:
            try:
                return understand(fetch(self._store, key, self._pace))
            except Corrupt as error:
                self.damaged(log, error)
                raise

    def _list(self, prefix: str, after: str, limit: int = PAGE) -> list[str]:
        for attempt in range(4):
            try:
                return self._store.list(prefix, start_after=after, limit=limit)
            except StoreError as e:
                if attempt == 3 or e.lasting:
                    raise Unavailable("the object store can't be listed") from e
                self._pace.sleep(0.05 * 2**attempt * (1 + self._pace.random()))
        raise AssertionError("unreachable")
