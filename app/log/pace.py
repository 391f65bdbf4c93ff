"""Pacing of a log with many followers: what comes within a short while goes out as one.

Writing to one follower costs about 60 us of a core here, so each event to 500 of them would keep a process at 90 % at 25 events a second
(measured). Rules: a log with few followers is never held back; with more, the interval between two rounds grows with their number, so that
rounds take about a third of the time; a round goes out in slices, between which everything else gets its turn; order is kept.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.log.hub import Chunk, Feed

FEW = 32
SECONDS_EACH = 0.0002
LONGEST = 0.5
SLICE = 50


class Pace:
    """Holds chunks back until their feed is due. One thread, started when it is first needed; `close` ends it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._held: dict[int, tuple[Feed, deque[Chunk], float]] = {}
        self._last: dict[int, float] = {}
        self._thread: threading.Thread | None = None
        self._closed = False

    def push(self, feed: Feed, chunk: Chunk) -> None:
        """Hands `chunk` to the feed's followers, at once or soon."""
        if len(feed.followers) <= FEW and id(feed) not in self._held:
            _hand_out(feed, chunk)
            return
        with self._changed:
            held = self._held.get(id(feed))
            if held:
                held[1].append(chunk)
                return
            interval = min(LONGEST, len(feed.followers) * SECONDS_EACH)
            due = max(time.monotonic(), self._last.get(id(feed), 0.0) + interval)
            self._held[id(feed)] = (feed, deque([chunk]), due)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="pace", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        """Ends the thread; what is held is dropped: followers read it from history."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed and not self._held:
                    self._last.clear()
                    self._changed.wait()
                if self._closed:
                    return
                key, (feed, chunks, due) = min(self._held.items(), key=lambda item: item[1][2])
                wait = due - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                # emptied before it is handed out, so that what comes meanwhile waits for the next round
                self._held[key] = (feed, deque(), time.monotonic() + LONGEST)
            for chunk in joined(chunks):
                _hand_out(feed, chunk, time.sleep)
            with self._changed:
                later = self._held.pop(key)[1]
                self._last[key] = time.monotonic()
                if later:
                    interval = min(LONGEST, len(feed.followers) * SECONDS_EACH)
                    self._held[key] = (feed, later, time.monotonic() + interval)


def joined(chunks: deque[Chunk]) -> list[Chunk]:
    """The same events and deltas in the same order, in as few chunks as possible."""
    out: list[Chunk] = []
    for chunk in chunks:
        last = out[-1] if out else None
        if last and last.gen == chunk.gen and (chunk.gen < 0 or last.end == chunk.first):
            out[-1] = last.with_lines(chunk.lines)
        else:
            out.append(chunk)
    return out


def _hand_out(feed: Feed, chunk: Chunk, let_others: Callable[[float], None] | None = None) -> None:
    for n, follower in enumerate(tuple(feed.followers), 1):
        follower.push(chunk)
        if let_others and n % SLICE == 0:
            let_others(0)
