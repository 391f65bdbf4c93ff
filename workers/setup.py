"""A project's set-up command in a new worktree: what it needs beside its files (design 04: ignored dependencies don't travel).

Rules: it runs like an agent does, under the guardian, with the project's environment and nothing of ours, and is killed whole at its
limit or when the session is lost. How it ended is told and stops nothing: the agent sees what is missing, and can say so.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from workers.lease import Lease
from workers.process import Guardian, SpawnFailed

KEPT = 16 * 2**10  # Bytes of its output, the last ones.
TIMED_OUT = 124
"""Exit status of a command that reached its limit, as timeout(1) has it."""
_LOOK = 0.5


class Ended(NamedTuple):
    """How it ended. `output`: the end of what it printed; `truncated`: there was more."""

    exit_status: int
    output: str
    truncated: bool


def run(
    guardian: Guardian,
    lease: Lease,
    command: str,
    where: Path,
    environment: Mapping[str, str],
    seconds: float,
    stopped: Callable[[], bool],
) -> Ended | None:
    """Runs `command` in `where`; None if it was `stopped`. Raises GuardianLost, StillAlive."""
    try:
        child = guardian.spawn(
            ["/bin/sh", "-c", f"exec 2>&1 </dev/null\n{command}"], env=environment, cwd=where, deadline=lease.deadline
        )
    except SpawnFailed as error:
        return Ended(127, str(error), truncated=False)
    lease.extended = child.set_deadline
    tail, cut = b"", False
    until = time.monotonic() + seconds
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(child.stdout, selectors.EVENT_READ)
            while time.monotonic() < until:
                if stopped():
                    return None
                if not selector.select(_LOOK):
                    if child.wait(0) is not None:
                        break  # something that it has left in the background keeps its output open
                    continue
                piece = os.read(child.stdout.fileno(), 2**16)
                if not piece:
                    break
                cut = cut or len(tail) + len(piece) > KEPT
                tail = (tail + piece)[-KEPT:]
        status = child.wait(max(0.0, min(5.0, until - time.monotonic())))
    finally:
        lease.extended = lambda _: None
        try:
            child.kill()
        finally:
            child.close()
    return Ended(TIMED_OUT if status is None else status, tail.decode(errors="replace"), cut)
