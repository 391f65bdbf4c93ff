"""Locks between threads and processes of one machine: a bounded set of lock files, of which each name has one by its hash.

Rules: the kernel frees a lock when its holder dies; each attempt opens the file anew, so that threads exclude each other too;
nobody waits inside the kernel (a greenlet that waits lets the others run), and every wait is bounded.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FIRST_PAUSE = 0.0005  # seconds
LONGEST_PAUSE = 0.01  # seconds


class Locks:
    """`count` lock files in `folder`, which exists."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder = str(folder)
        self._count = count

    @contextmanager
    def exclusive(self, name: str, seconds: float) -> Iterator[bool]:
        """Hold `name`'s lock alone. Yields whether it was got within `seconds`; the block runs either way. Raises OSError."""
        handle = self._open(name)
        try:
            yield _wait(handle, seconds)
        finally:
            os.close(handle)

    @contextmanager
    def shared(self, name: str) -> Iterator[bool]:
        """Keep writers out while the block runs, without waiting. Yields False if one is in already. Raises OSError."""
        handle = self._open(name)
        try:
            yield _try(handle, fcntl.LOCK_SH)
        finally:
            os.close(handle)

    def _open(self, name: str) -> int:
        number = zlib.crc32(name.encode()) % self._count
        return os.open(f"{self._folder}/{number:04d}", os.O_RDWR | os.O_CREAT, 0o600)


def _wait(handle: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    pause = FIRST_PAUSE
    while not _try(handle, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause * (0.5 + random.random()))  # noqa: S311 - spreads waiters, guards nothing
        pause = min(pause * 2, LONGEST_PAUSE)
    return True


def _try(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
