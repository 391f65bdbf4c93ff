"""Locks between the threads and workers of one machine, for what git's own locks don't cover.

Rules: a lock is a file that is locked, not one that exists, so that it ends with its holder; waiting for it is bounded.
"""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from app.core.errors import Unavailable

_STEP = 0.01  # Seconds between two looks; flock has no waiting with a limit.


@contextmanager
def held(path: Path, seconds: float = 60.0, *, shared: bool = False) -> Iterator[None]:
    """Holds the lock at `path` (a file of ours, made when needed), alone or with all who share it. Raises Unavailable after `seconds`."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("ab") as file:
        end = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise Unavailable("another operation on this repository takes too long") from None
                time.sleep(_STEP)
        yield  # Closing the file ends the lock.
