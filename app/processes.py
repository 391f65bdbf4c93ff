"""Processes of this machine, as the kernel knows them.

Rules: a pid alone names nobody, since numbers are used again; a process is a pid together with its start time. Nothing here
signals a process of which that pair isn't known, or that is not our own child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, NoReturn

ROOT = Path(__file__).resolve().parents[1]
"""The directory that holds our packages."""
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    """One process for good: `started` is field 22 of /proc/PID/stat, in clock ticks since boot."""

    pid: int
    started: int


def die_with_parent(parent: int) -> None:
    """The kernel kills this process when the thread that made it ends, however that ends. `parent` is the pid expected there.

    Called between fork and exec, or right after a fork. It survives exec. A parent that is gone already ends us here.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def leave(status: int) -> NoReturn:
    """Ends this process at once. For one that has closed all it had: taking the interpreter apart takes half a second more."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def raise_open_files() -> int:
    """Lifts this process's limit of open files to what it is allowed, for its children too; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def identify(pid: int) -> Process | None:
    """The process that has this pid now; None if there is none, or only a dead one that nobody has waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat[stat.rindex(")") + 2 :].split()  # the name before it may hold anything
    dead = fields[0] in "ZX" and int(fields[17]) <= 1  # a main thread that ended while others run looks like a zombie too
    return None if dead else Process(pid, int(fields[19]))


def kill_and_wait(processes: Iterable[Process], timeout: float) -> list[Process]:
    """Kills those that still live, with their process groups where they lead one, and waits; returns those alive at the end."""
    left = [process for process in processes if identify(process.pid) == process]
    for process in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getpgid(process.pid) == process.pid:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while left and time.monotonic() < deadline:
        time.sleep(0.02)
        left = [process for process in left if identify(process.pid) == process]
    return left
