"""What a process knows of head objects, and for how long it may rely on that.

Rules: a cached head is good for finding things; a head that a decision rests on is read for it. Compaction and `byre gc` free the keys of
segments only a day after the chain has said that nobody may want them. So whoever was stalled for longer than `LATE_SECONDS`
between asking for a head and what it did by it knows nothing: what it found may have been freed, what it failed to find was moved, and
what it wrote may have landed in a freed key. It asks again.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

from app.core.errors import Corrupt, CursorUnavailable, Unavailable
from app.log import heads
from app.log.heads import LogHead
from app.store.contract import Store
from app.store.keys import LogName
from app.store.puts import REAL, Pace

HEAD_SECONDS = 60.0
HEADS = 4096
LATE_SECONDS = 600.0
TRIES = 3

T = TypeVar("T")


def late(pace: Pace, asked: float) -> bool:
    """Whether a head that was asked for at `asked` (`pace.now()`) says nothing any more."""
    return pace.now() - asked > LATE_SECONDS


class HeadCache:
    """Heads of the logs in `store`. Thread-safe."""

    def __init__(self, store: Store, pace: Pace = REAL) -> None:
        self._store, self._pace = store, pace
        self._heads: OrderedDict[LogName, tuple[LogHead, float, float]] = OrderedDict()

    def head(self, log: LogName, gen: int | None = None) -> LogHead:
        """The head, from the cache if it knows generation `gen` as the last one. Raises Missing, Corrupt, Unavailable."""
        hit = self._heads.get(log)
        if hit and self._pace.now() - hit[1] < HEAD_SECONDS and (gen is None or hit[0].last.gen == gen):
            return hit[0]
        return self.fresh(log)

    def keep(self, log: LogName, head: LogHead, asked: float | None = None) -> LogHead:
        """Remembers a head that was read or written just now; `asked` is `pace.now()` of before, without it no PUT relies on it."""
        now = self._pace.now()
        self._heads[log] = (head, now, -math.inf) if asked is None else (head, asked, asked)
        while len(self._heads) > HEADS:
            self._heads.popitem(last=False)
        return head

    def drop(self, log: LogName) -> None:
        """Forgets a head."""
        self._heads.pop(log, None)

    def fresh(self, log: LogName) -> LogHead:
        """The head as it is now. Raises Missing, Corrupt, Unavailable."""
        asked = self._pace.now()
        return self.keep(log, heads.load(self._store, log, self._pace), asked)

    def proof(self, log: LogName, gen: int) -> tuple[LogHead, float]:
        """A head that was asked for not long ago, and when: what a PUT into generation `gen` relies on."""
        hit = self._heads.get(log)
        if hit and self._pace.now() - hit[2] < LATE_SECONDS / 2 and hit[0].last.gen == gen:
            return hit[0], hit[2]
        asked = self._pace.now()
        return self.fresh(log), asked

    def late(self, asked: float) -> bool:
        """Whether a head that was asked for at `asked` says nothing any more."""
        return late(self._pace, asked)

    def timely(self, look: Callable[[], T]) -> T:
        """What `look` finds by a head that it takes from here, found again if that took too long. Raises what it raises."""
        for _ in range(TRIES):
            asked = self._pace.now()
            try:
                found = look()
            except (Corrupt, CursorUnavailable):
                if not self.late(asked):
                    raise
            else:
                if not self.late(asked):
                    return found
        raise Unavailable("the session's log can't be read in time")
