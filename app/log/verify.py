"""Reading a whole log again and judging every byte of it: what `byre check --session` says of the log.

Rules: nothing is changed, and nothing that a header or an index claims is taken for true: checksums are computed, states folded, key
indexes made anew, offsets counted. It goes on after a fault, so that one run names them all.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import orjson

from app.core import chain as chains
from app.core.chain import Generation
from app.core.errors import Corrupt, IllegalStep
from app.core.session import State
from app.log import events, fold, keyindex
from app.log.heads import LogHead
from app.log.segment import Fence, Segment, decode, unmark
from app.log.segments import Segments
from app.store import keys
from app.store.keys import LogName

Under = Callable[[str, str], Iterator[str]]
"""All keys that begin with the first argument and follow the second."""


@dataclasses.dataclass(slots=True)
class Findings:
    """What a check found. `bad` are (object, what is wrong)."""

    good: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    bad: list[tuple[str, str]] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(slots=True)
class _Reached:
    """How far the check of one generation is. `state` and `mark` are None where they can't be known."""

    at: int
    state: State | None
    mark: str | None
    segments: int = 0
    large: int = 0
    fences: int = 0
    beyond: int = 0


class LogCheck:
    """Checks the log `name` whose head is `head`."""

    def __init__(self, segments: Segments, under: Under, name: LogName, head: LogHead, findings: Findings) -> None:
        self._segments, self._under, self._name, self._head = segments, under, name, head
        self._found = findings
        self._ids: dict[str, int] = {}

    def run(self) -> None:
        """Checks all generations. Raises Unavailable."""
        chain = self._head.chain
        if [g.gen for g in chain] != sorted({g.gen for g in chain}) or any(not 0 <= g.start <= g.boundary for g in chain):
            self._bad(keys.head_object(self._name), "its chain of generations is out of order")
            return
        for index, gen in enumerate(chain):
            self._generation(index, gen, chains.end(chain, gen.gen))

    def _generation(self, index: int, gen: Generation, limit: int | None) -> None:
        reached = _Reached(gen.start, self._start_state(index), self._start_mark(index))
        for large in self._larges(gen, reached):
            self._segment(gen, limit, reached, large, keys.compacted(self._name, gen.gen, large.first))
            self._index(large)
        prefix, merged = keys.segment_prefix(self._name, gen.gen), 0
        for key in self._under(prefix, prefix):
            found = self._read(key)
            first = keys.parse_segment(key).offset
            if isinstance(found, Fence):
                reached.fences += 1
                if index == len(self._head.chain) - 1 and first == reached.at:
                    self._found.notes.append(f"generation {gen.gen} is fenced: a recovery of it is half way")
            elif first < gen.boundary:
                merged += 1
            elif found is not None:
                self._segment(gen, limit, reached, found, key)
        if limit is not None:
            self._closed(gen, limit, reached)
        if merged:
            self._found.notes.append(f"generation {gen.gen}: {merged} small segments are merged and wait for `byre gc`")
        if reached.beyond:
            self._found.notes.append(f"generation {gen.gen}: {reached.beyond} segments were left behind by a restore")
        covered = reached.at if limit is None else min(limit, reached.at)
        offsets = f"offsets {gen.start} to {covered - 1}" if covered > gen.start else "no events"
        what = f"{reached.segments} segments" + (f", {reached.large} of them large" if reached.large else "")
        self._found.good.append(f"generation {gen.gen}: {offsets}, {what}")

    def _larges(self, gen: Generation, reached: _Reached) -> Iterator[Segment]:
        while reached.at < gen.boundary:
            key = keys.compacted(self._name, gen.gen, reached.at)
            found = self._read(key)
            if not isinstance(found, Segment):
                if found is not None or self._segments.fetch(key) is None:
                    self._bad(key, "the large segment is missing")
                self._lost(reached, gen.boundary)
                return
            reached.large += 1
            yield found
        if reached.at != gen.boundary:
            self._bad(keys.head_object(self._name), f"the boundary of generation {gen.gen} is no end of a large segment")
            self._lost(reached, gen.boundary)

    def _segment(self, gen: Generation, limit: int | None, reached: _Reached, found: Segment, key: str) -> None:
        if found.first != reached.at:
            if limit is None or reached.at < limit:
                self._bad(key, f"it begins at offset {found.first}, but {reached.at} is the next: the log has a hole")
            self._lost(reached, found.first)
        reached.segments += 1
        reached.beyond += limit is not None and found.first >= limit
        if reached.mark is not None:
            prev, total = unmark(reached.mark)
            if found.prev != prev:
                self._bad(key, "it doesn't follow the segment before it: the checksum of that one is another")
            elif found.total != total + sum(map(len, found.lines)):
                self._bad(key, "its count of bytes is wrong")
        self._lines(found, key, limit)
        self._fold(gen, reached, found, key)
        reached.at, reached.mark = found.end, found.mark

    def _fold(self, gen: Generation, reached: _Reached, found: Segment, key: str) -> None:
        if self._name.session is None:
            return
        if reached.state is not None:
            try:
                folded = fold.over(reached.state, gen.gen, found.first, found.lines).to_json()
                if orjson.loads(orjson.dumps(folded)) != found.state:
                    self._bad(key, "the state in its header is not what its events fold to")
            except (IllegalStep, KeyError, TypeError, ValueError, AssertionError) as error:
                self._bad(key, f"its events can't be folded: {error}")
        try:
            reached.state = State.from_json(found.state)
        except (KeyError, TypeError, ValueError):
            self._bad(key, "the state in its header can't be read")
            reached.state = None

    def _lines(self, found: Segment, key: str, limit: int | None) -> None:
        for offset, raw in enumerate(found.lines, found.first):
            try:
                event = events.parse(raw)
                known = events.kind_of(raw) == event["type"] and events.id_of(raw) == event["id"] and event["time"]
            except (ValueError, KeyError, TypeError):
                known = False
            if not known:
                self._bad(key, f"the event at offset {offset} can't be read")
            elif limit is None or offset < limit:
                if event["id"] in self._ids:
                    self._bad(key, f"the event at offset {offset} has the id of the one at {self._ids[event['id']]}")
                self._ids[event["id"]] = offset

    def _index(self, large: Segment) -> None:
        key = keys.key_index(self._name, large.gen, large.first)
        body = self._segments.fetch(key)
        if body is None:
            self._bad(key, "the key index is missing")
            return
        try:
            end, inputs = keyindex.decode(key, body, large.gen, large.first)
        except Corrupt as error:
            self._bad(key, error.message)
            return
        if end != large.end or list(inputs) != list(keyindex.inputs_of(large)):
            self._bad(key, "the key index is not what its segment says")

    def _closed(self, gen: Generation, limit: int, reached: _Reached) -> None:
        if self._name.session is not None and reached.at < limit:
            self._bad(keys.segment(self._name, gen.gen, reached.at), f"the log lacks offsets {reached.at} to {limit - 1}")
        if not reached.fences:
            self._bad(keys.segment(self._name, gen.gen, reached.at), "the generation has ended, but no fence closes it")

    def _start_state(self, index: int) -> State | None:
        """The state in which the generation begins; earlier ones have been checked by now."""
        if self._name.session is None:
            return None
        try:
            return fold.start_state(self._segments, self._name, self._head.chain, self._head.chain[index].gen)
        except Corrupt as error:
            if not self._left_behind(index):
                self._bad(error.key, f"the state before generation {self._head.chain[index].gen} is lost: {error.message}")
            return None

    def _start_mark(self, index: int) -> str | None:
        gen, before = self._head.chain[index], self._head.chain[:index]
        if gen.start == 0 or not before:
            return ""
        if self._name.session is None:
            return None  # numbers jump in a recovery, so what lies before isn't at the offset before
        try:
            return fold.state_at(self._segments, self._name, before, gen.start)[1]
        except Corrupt:
            return None

    def _left_behind(self, index: int) -> bool:
        """Whether later generations have cut the whole of this one off."""
        chain = self._head.chain
        limit = chains.end(chain, chain[index].gen)
        return limit is not None and limit <= chain[index].start

    def _read(self, key: str) -> Segment | Fence | None:
        body = self._segments.fetch(key)
        if body is None:
            return None
        try:
            found = decode(key, body)
        except Corrupt as error:
            self._bad(key, error.message)
            return None
        place = keys.parse_segment(key)
        if isinstance(found, Segment) and (found.gen, found.first) != (place.gen, place.offset):
            self._bad(key, "it is the content of another segment")
            return None
        return found

    def _bad(self, key: str, why: str) -> None:
        if (key, why) not in self._found.bad:
            self._found.bad.append((key, why))

    @staticmethod
    def _lost(reached: _Reached, at: int) -> None:
        """What follows can't be held against what came before."""
        reached.at, reached.state, reached.mark = at, None, None
