"""Lines of harnesses that didn't parse: kept until they are told to people who look for what is wrong."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from workers.harness.base import ProtocolError

KEPT = 50


@dataclass
class Kept:
    """One bad line: `raw` is cut to 4 KiB, `size` its full length in bytes, `at` seconds since 1970."""

    vendor: str
    tenant: str
    session: str
    at: float
    reason: str
    raw: bytes
    size: int


class ProtocolErrors:
    """Of one worker, since it started. Thread-safe. What isn't taken in time is only counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._waiting: deque[Kept] = deque(maxlen=KEPT)

    def add(self, vendor: str, tenant: str, session: str, error: ProtocolError) -> Kept:
        """Counts and keeps one."""
        kept = Kept(vendor, tenant, session, time.time(), error.reason, error.raw, error.size)
        with self._lock:
            self._counts[tenant, vendor] += 1
            self._waiting.append(kept)
        return kept

    def take(self) -> tuple[list[Kept], dict[tuple[str, str], int]]:
        """What came since the last time, oldest first, and how many in all by tenant and vendor."""
        with self._lock:
            taken, counts = list(self._waiting), dict(self._counts)
            self._waiting.clear()
            self._counts.clear()
        return taken, counts
