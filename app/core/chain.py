"""The generation chain of a log: which generation holds which offsets.

Rules: generation g covers `[start_g, min(start_h of every later h))`, so offsets are dense and each has one owner. A cursor is
valid if its generation covers its offset. The last generation is open: its end is the log's `next`. A boundary only rises, and what
lies below it may be deleted a day after it rose, so the latest rises are kept with their times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.cursor import START, Position

KEPT_RISES = 8
"""Rises of a boundary that a chain entry remembers. Forgetting one only defers a deletion."""


@dataclasses.dataclass(frozen=True, slots=True)
class Generation:
    """One entry of the chain. Offsets below `boundary` are served from compacted segments only.

    `inc` is the incarnation of the Redis server it is bound to; `restored` names the checkpoint that it began from, if any;
    `rises` are boundaries with the unix time (seconds) from which on each was in force, ascending.
    """

    gen: int
    start: int
    inc: str
    boundary: int = 0
    restored: str | None = None
    rises: tuple[tuple[int, int], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an absent `restored` is left out, and so are `rises` of which there are none."""
        out: dict[str, Any] = {"gen": self.gen, "start": self.start, "inc": self.inc, "boundary": self.boundary}
        if self.restored:
            out["restored"] = self.restored
        if self.rises:
            out["rises"] = [list(rise) for rise in self.rises]
        return out

    @staticmethod
    def from_json(raw: Mapping[str, Any]) -> Generation:
        """The inverse of `to_json`."""
        rises = tuple((boundary, since) for boundary, since in raw.get("rises", ()))
        return Generation(raw["gen"], raw["start"], raw["inc"], raw.get("boundary", 0), raw.get("restored"), rises)

    def risen(self, boundary: int, now: int, settled: int) -> Generation:
        """This entry with its boundary raised at unix time `now`. Of the rises before `settled` only the last is still of use."""
        old = [rise for rise in self.rises if rise[1] <= settled][-1:]
        young = [rise for rise in self.rises if rise[1] > settled][: KEPT_RISES - 2]  # the oldest: they come of age first
        return dataclasses.replace(self, boundary=boundary, rises=(*old, *young, (boundary, now)))

    def settled_boundary(self, since: int) -> int:
        """The boundary that was in force at unix time `since`: no writer that began after it can want a key below."""
        return max((boundary for boundary, at in self.rises if at <= since), default=self.start)


Chain = tuple[Generation, ...]


def end(chain: Sequence[Generation], gen: int) -> int | None:
    """The offset at which generation `gen` ends, None if it is the last one. Raises KeyError if the chain lacks it."""
    for i, entry in enumerate(chain):
        if entry.gen == gen:
            return min((later.start for later in chain[i + 1 :]), default=None)
    raise KeyError(gen)


def owner(chain: Sequence[Generation], offset: int) -> Generation:
    """The generation that covers `offset` (the last one for everything from its start on)."""
    for i in range(len(chain) - 1, -1, -1):
        if chain[i].start <= offset:
            return chain[i]
    raise KeyError(offset)


def covers(chain: Sequence[Generation], position: Position, next_offset: int | None) -> bool:
    """Whether `position` is a place in this log. `next_offset` bounds the last generation (None: not known, taken as open).

    The start (offset -1) is always one.
    """
    if position.offset == -1:
        return position.gen <= chain[-1].gen
    entry = next((e for e in chain if e.gen == position.gen), None)
    if entry is None or position.offset < entry.start:
        return False
    limit = end(chain, position.gen)
    if limit is None:
        limit = next_offset
    return limit is None or position.offset < limit


def last_good(chain: Sequence[Generation], position: Position) -> Position:
    """The latest place at or before a lost `position` that is still in the log: everything up to it is as it was."""
    entry = next((e for e in chain if e.gen == position.gen), None)
    if entry is None:
        return START
    limit = end(chain, position.gen)
    offset = position.offset if limit is None else min(position.offset, limit - 1)
    return at(chain, offset)


def at(chain: Sequence[Generation], offset: int) -> Position:
    """The position of `offset` under today's chain; the start for anything below 0."""
    return Position(owner(chain, offset).gen, offset) if offset >= 0 else START
