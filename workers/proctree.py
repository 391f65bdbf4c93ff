"""Processes as /proc shows them: who descends from whom, and killing exactly those.

Rules: a process is (pid, start time), never a pid alone, so that a reused pid is never hit. A zombie counts as dead. Nothing
here waits or sleeps. Standard library only and few imports: the guardian, which must start fast and be small, is made of this.
"""

# No pathlib: it would add a third to the guardian's memory and start-up.
# ruff: noqa: PTH110, PTH116, PTH208

from __future__ import annotations

import contextlib
import os
import signal

MARKER = "BYRE_MARKER"
_PROC = "/proc"
_DEAD = ("Z", "X", "x")


class Process:
    """One process: `start` is its start time in clock ticks since boot, `threads` counts them (proc(5), /proc/PID/stat)."""

    __slots__ = ("pgid", "pid", "ppid", "sid", "start", "state", "threads")

    def __init__(self, pid: int, stat: list[bytes]) -> None:
        self.pid, self.state = pid, stat[0].decode()
        self.ppid, self.pgid, self.sid = int(stat[1]), int(stat[2]), int(stat[3])
        self.threads, self.start = int(stat[17]), int(stat[19])

    @property
    def alive(self) -> bool:
        """A main thread that ended while others run shows as a zombie too: it isn't one."""
        return self.state not in _DEAD or self.threads > 1


def _slurp(path: str) -> bytes | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        parts = []
        while part := os.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    except OSError:
        return None  # it died while we read
    finally:
        os.close(fd)


def look(pid: int) -> Process | None:
    """The process `pid` as it is now, a zombie included; None if there is none."""
    raw = _slurp(f"{_PROC}/{pid}/stat")
    if not raw:
        return None
    # The command name may hold blanks and parentheses: fields are counted from the last ")".
    return Process(pid, raw[raw.rindex(b")") + 2 :].split())


def is_alive(pid: int, start: int) -> bool:
    """Whether the very process (pid, start time) runs; a zombie doesn't."""
    found = look(pid)
    return found is not None and found.start == start and found.alive


def everyone() -> dict[int, Process]:
    """All processes that /proc shows, by pid. Not atomic: one that forks and exits meanwhile may be missed."""
    found = {}
    for name in os.listdir(_PROC):
        if name.isdigit() and (process := look(int(name))):
            found[process.pid] = process
    return found


def carries(pid: int, marker: str) -> bool:
    """Whether `BYRE_MARKER=marker` stands in the environment that `pid` was started with."""
    environ = _slurp(f"{_PROC}/{pid}/environ")
    return environ is not None and f"{MARKER}={marker}".encode() in environ.split(b"\0")


def strike(process: Process, sig: int = signal.SIGKILL) -> bool:
    """Sends `sig` to exactly this process. False if it is gone (or not ours to signal)."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    except OSError:  # no pidfds here (old kernel, no free descriptor): the check below leaves a window of microseconds
        handle = -1
    try:
        now = look(process.pid)
        if now is None or now.start != process.start:
            return False
        if handle >= 0:
            signal.pidfd_send_signal(handle, sig)
        else:
            os.kill(process.pid, sig)
    except (ProcessLookupError, PermissionError):
        return False
    finally:
        if handle >= 0:
            os.close(handle)
    return True


def children(pid: int) -> set[int] | None:
    """Pids of the direct children of `pid`, zombies included. None if the kernel has no such file (CONFIG_PROC_CHILDREN)."""
    try:
        tasks = os.listdir(f"{_PROC}/{pid}/task")
    except OSError:
        return set()
    found: set[int] = set()
    for task in tasks:
        raw = _slurp(f"{_PROC}/{pid}/task/{task}/children")
        if raw is None:
            if os.path.exists(f"{_PROC}/{pid}/task/{task}"):
                return None
            continue
        found.update(map(int, raw.split()))
    return found


def kill_below(root: int, spare: frozenset[int] | set[int] = frozenset()) -> int:
    """SIGKILLs every living descendant of `root`, parents first, each as soon as it is seen; answers how many it saw.

    `spare` are direct children of `root` that are left alone with all below them. Quick (tens of microseconds a process), so
    that also a process that forks and exits all the time is hit when this is called again and again.
    """
    seen, queue = 0, [root]
    for parent in queue:
        kids = children(parent)
        if kids is None:
            return sum(strike(process) for process in descendants(everyone(), root, spare))
        for pid in kids - spare if parent == root else kids:
            process = look(pid)
            if process is not None and process.ppid == parent and process.alive:
                strike(process)
                queue.append(pid)
                seen += 1
    return seen


def is_bare(root: int, spare: frozenset[int] | set[int] = frozenset()) -> bool:
    """Proof that nothing lives below the subreaper `root` (`spare` aside): True only if that is certain.

    Each process below has a living ancestor chain that ends in a child of `root`, because orphans come to it. So: all its
    children were zombies (which have no children and keep their pids), and then they were still the same.
    """
    kids = children(root)
    if kids is None:
        return not descendants(everyone(), root, spare) and not descendants(everyone(), root, spare)
    for pid in kids - spare:
        process = look(pid)
        if process is not None and process.alive:
            return False
    again = children(root)
    return again is not None and again - spare <= kids - spare


def descendants(among: dict[int, Process], root: int, spare: frozenset[int] | set[int] = frozenset()) -> list[Process]:
    """The living processes of `among` that descend from `root` (not itself, not `spare` or what is below it), parents first."""
    below: dict[int, list[Process]] = {}
    for process in among.values():
        below.setdefault(process.ppid, []).append(process)
    found, queue = [], [root]
    for parent in queue:
        for process in below.get(parent, ()):
            if not (parent == root and process.pid in spare):
                queue.append(process.pid)
                if process.alive:
                    found.append(process)
    return found


def kin(among: dict[int, Process], leader: int | None, marker: str) -> list[Process]:
    """The living processes of `among` in the session or group that `leader` made, or whose environment carries `marker`.

    Only right while `leader`'s pid can't have been reused: it is running, an unreaped zombie, or checked by its start time.
    """
    return [
        process
        for process in among.values()
        if process.alive and ((leader is not None and leader in (process.sid, process.pgid)) or carries(process.pid, marker))
    ]


def namespace() -> str:
    """Names this boot and pid namespace: pids and start times mean something only together with it."""
    boot = _slurp(f"{_PROC}/sys/kernel/random/boot_id") or b""
    inode = 0
    with contextlib.suppress(OSError):
        inode = os.stat(f"{_PROC}/self/ns/pid").st_ino
    return f"{boot.decode().strip()}/{inode}"
