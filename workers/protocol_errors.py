"""Lines of harnesses that didn't parse: counted, and the latest kept, for people who look for what is wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import NamedTuple

from workers.harness.base import ProtocolError

KEPT = 50


class Kept(NamedTuple):
    """One bad line: `raw` is cut to 4 KiB, `at` seconds since 1970."""

    vendor: str
    session: str
    at: float
    reason: str
    raw: bytes


class ProtocolErrors:
    """Of one worker, since it started. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.recent: deque[Kept] = deque(maxlen=KEPT)

    def add(self, vendor: str, session: str, error: ProtocolError) -> None:
        """Counts and keeps one."""
        with self._lock:
            self.counts[vendor] += 1
            self.recent.appendleft(Kept(vendor, session, time.time(), error.reason, error.raw))
