"""A follower: one reader's place in a log, from history into the live tail with no gap and no repeat.

Rules: it is either *catching up* (reads pages of history; live chunks only say that there is more) or *live* (takes each chunk that
continues its position). It goes live only when a read came to the end and nothing newer was published since. A generation that
cuts off something it has delivered ends it: its client resumes by cursor and is told.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from app.core.cursor import Position
from app.core.errors import Conflict, CursorUnavailable, Missing, Unavailable
from app.log.log import Entry
from app.store.keys import LogName

if TYPE_CHECKING:
    from app.log.hub import Chunk, Feed, Hub

QUEUE_BYTES = 1 << 20
PAGE = 500
RETRY_SECONDS = 1.0
SEAM_SECONDS = 0.02
"""Before reading again where a read found neither an event nor the end: a recovery is under way."""
CLOSED = b'{"type":"session.closed"'


class Follower:
    """Made by `Hub.follow`. One thread reads it; the hub's thread pushes."""

    feed: Feed

    def __init__(self, hub: Hub, log: LogName, after: Position, notify: Callable[[], None] | None) -> None:
        self.log = log
        self.position = after
        self._hub = hub
        self._notify = notify
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._chunks: deque[Chunk] = deque()
        self._bytes = 0
        self._live = False
        self._tip = after
        self._over = False
        self.finite = False
        """Set for a log that is closed already: the follower ends where history does."""
        self._wake.set()

    # The hub's side

    def push(self, chunk: Chunk) -> None:
        """Takes a live chunk if it continues what is queued; otherwise there is history to read."""
        with self._lock:
            if not self._live:
                if chunk.gen < 0:
                    return
            elif chunk.gen >= 0 and (chunk.gen != self._tip.gen or chunk.first > self._tip.offset + 1):
                self._fall_back()
            elif chunk.gen >= 0 and chunk.end <= self._tip.offset + 1:
                return
            elif self._bytes + chunk.size > QUEUE_BYTES and self._chunks:
                self._fall_back()
            else:
                if chunk.gen >= 0:
                    chunk = chunk.since(self._tip.offset + 1)
                    self._tip = Position(chunk.gen, chunk.end - 1)
                self._chunks.append(chunk)
                self._bytes += chunk.size
        self.poke()

    def stale(self, last: Position) -> None:
        """The log's head is at `last`: whoever lives on less has missed something."""
        with self._lock:
            if self._live and last > self._tip:
                self._fall_back()
        self.poke()

    def poke(self) -> None:
        """Wakes the reader."""
        self._wake.set()
        if self._notify:
            self._notify()

    def end(self) -> None:
        """Ends the follower: what is queued is still read, then EOFError."""
        self._over = True
        self.poke()

    # The reader's side

    def entries(self, timeout: float) -> list[Entry]:
        """The next events, empty when `timeout` seconds pass without one. Deltas are left out. Raises EOFError at the end."""
        out: list[Entry] = []
        for chunk in self._take(timeout):
            if chunk.gen >= 0:
                out += [Entry(Position(chunk.gen, o), raw) for o, raw in enumerate(chunk.lines, chunk.first)]
        return out

    def read(self, timeout: float) -> bytes:
        """The next events and deltas as server-sent events, coalesced; empty when `timeout` passes. Raises EOFError at the end."""
        return b"".join(chunk.sse for chunk in self._take(timeout))

    def close(self) -> None:
        """Ends following. Idempotent."""
        self._over = True
        self._hub.unfollow(self)
        self._wake.set()

    def _take(self, timeout: float) -> list[Chunk]:
        if self._over and not self._chunks:
            raise EOFError
        if not self._live and not self._over:
            taken = self._catch_up()
            if taken:
                return taken
        if self._wake.wait(timeout):
            self._wake.clear()
        with self._lock:
            taken = list(self._chunks)
            self._chunks.clear()
            self._bytes = 0
        if not taken and self._over:
            raise EOFError
        if not taken and not self._live:
            return self._catch_up()
        for chunk in taken:
            self._delivered(chunk)
        return taken

    def _catch_up(self) -> list[Chunk]:
        from app.log.hub import Chunk

        seen = self.feed.last
        try:
            page = self._hub.log.read(self.log, self.position, PAGE)
        except Unavailable:
            # what is archived was delivered; the hub wakes us when Redis is back
            self._wake.wait(RETRY_SECONDS)
            self._wake.clear()
            return []
        except (CursorUnavailable, Missing, Conflict):
            self._over = True
            raise EOFError from None
        if page.end and self.finite:
            self._over = True
        if page.end:
            tip = page.entries[-1].position if page.entries else self.position
            with self._lock:
                if self.feed.last == seen or self.feed.last <= tip:
                    self._live = True
                    self._tip = tip
        if not page.entries and not page.end:
            time.sleep(SEAM_SECONDS)
        if not self._live or self._over:
            self._wake.set()
        out: list[Chunk] = []
        for entry in page.entries:
            if out and out[-1].gen == entry.position.gen:
                out[-1].lines.append(entry.raw)
            else:
                out.append(Chunk(self.log, entry.position.gen, entry.position.offset, [entry.raw]))
        for chunk in out:
            self._delivered(chunk)
        return out

    def _delivered(self, chunk: Chunk) -> None:
        if chunk.gen < 0:
            return
        self.position = Position(chunk.gen, chunk.end - 1)
        if chunk.lines[-1].startswith(CLOSED):
            self._over = True

    def _fall_back(self) -> None:
        self._live = False
        self._chunks.clear()
        self._bytes = 0
