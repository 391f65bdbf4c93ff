"""What one reader has seen, and the rules for it: dense, in order, never twice, and the same as everybody else sees.

A reader that got something of generation G has been told that all before it is as the log has it up to G. One that was refused is
told from where on reading works, and forgets what came after that.
"""

from __future__ import annotations

from typing import Any

from app.core import cursor
from app.core.cursor import Position
from app.log import events
from tests.sim.truth import Truth
from tests.sim.world import World


class Reading:
    """`history` holds (generation, event without its cursor); its index is the offset."""

    def __init__(self, world: World, truth: Truth, session: str) -> None:
        self._w, self._truth, self._session = world, truth, session
        self.history: list[tuple[int, dict[str, Any]]] = []
        self.cursor: str | None = None
        self._good = False

    def ask(self) -> None:
        """A request is about to be sent."""
        self._good = self._archived()

    def _archived(self) -> bool:
        """Whether the present place is in the archived log."""
        if not self.history:
            return True
        at = len(self.history) - 1
        return at < self._truth.head and self._truth.facts[at].gen == self.history[at][0]

    def paged(self, page: list[dict[str, Any]], next_cursor: str) -> None:
        """A page came."""
        for e in page:
            at = cursor.decode(self._session, e["cursor"])
            self._take(at, {name: value for name, value in e.items() if name != "cursor"})
        if page and next_cursor != page[-1]["cursor"]:
            self._w.violate("next_cursor is not where the page ends")
        self.cursor = next_cursor
        self._check()

    def delivered(self, at: Position, raw: bytes) -> None:
        """A live event came."""
        self._take(at, events.parse(raw))
        self.cursor = cursor.encode(self._session, at)
        self._check()

    def _take(self, at: Position, event: dict[str, Any]) -> None:
        if at.offset != len(self.history):
            self._w.violate(f"a reader at {len(self.history) - 1} was given offset {at.offset}")
            return
        self.history.append((at.gen, event))

    def _check(self) -> None:
        if not self.history:
            return
        known = self.history[-1][0]
        for (gen, event), fact in zip(self.history, self._truth.facts, strict=False):
            if fact.gen <= known and (gen != fact.gen or event != fact.event):
                self._w.violate(f"a reader with a good cursor has seen another event at {fact.gen}/{fact.offset}")
                return

    def refused(self, earliest: Position) -> None:
        """The cursor isn't good any more; reading works from `earliest`."""
        if self._good and self._archived():
            self._w.violate("a good cursor was refused")
        if earliest.offset >= len(self.history):
            self._w.violate("the earliest good cursor is later than the one that was refused")
        del self.history[earliest.offset + 1 :]
        self.cursor = cursor.encode(self._session, earliest)

    def finish(self) -> None:
        """Nothing moves any more, and everything was read."""
        have = [(gen, event) for gen, event in self.history]
        if have != [(f.gen, f.event) for f in self._truth.facts]:
            self._w.violate("a reader has not seen exactly the log")
