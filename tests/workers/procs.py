"""Looking at real processes from a test: by a tag in their command line, which no clean-up of theirs can hide."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from pathlib import Path

ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


def tag() -> str:
    """A number of seconds that nobody else sleeps."""
    return f"36{random.randrange(10**4)}.{random.randrange(10**9):09d}"


def living(tag: str) -> list[int]:
    """Pids of the living processes with `tag` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            said = (entry / "cmdline").read_bytes()
            status = (entry / "status").read_text()
        except OSError:
            continue
        if tag.encode() in said and "\nState:\tZ" not in status:
            found.append(int(entry.name))
    return sorted(found)


def until(condition: Callable[[], object], seconds: float = 10.0) -> float:
    """Waits for `condition`; answers the seconds that it took, fails after `seconds`."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > seconds:
            raise AssertionError(f"not within {seconds} s")
        time.sleep(0.003)
    return time.monotonic() - start
