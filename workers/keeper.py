"""The keeper: one small process per harness, forked by the guardian, that starts the harness and adopts its orphans.

Rules: it is a child subreaper, so every descendant of the harness stays below it, also one that daemonised with a cleared
environment, and the guardian always knows whose it is. It is in its own session: signals to the group of the harness or of
the guardian don't reach it. It doesn't reap the harness: while the keeper lives, no other process can get that pid, group or
session. When the guardian dies it kills all below itself, then exits; when the guardian kills it, it has done its work.
Standard library only.
"""

# No pathlib: it would add a third to the guardian's memory and start-up.
# ruff: noqa: PTH123, PTH208

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
import time

from workers import proctree

TYPE_CHECKING = False  # importing `typing` would cost the guardian 1 MB
if TYPE_CHECKING:
    from typing import Any, NoReturn

DEAF_TO = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)  # what the guardian and its keepers ignore
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_LIMITS = {
    "core": resource.RLIMIT_CORE,
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "fsize": resource.RLIMIT_FSIZE,
}
_libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    """prctl(2) with one argument. Raises OSError."""
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def become_subreaper() -> None:
    """Orphans below this process become its children from now on."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def run(spec: dict[str, Any], stdio: list[int], report: int, control: int) -> NoReturn:
    """The life of a keeper, in the child of a fork; never returns.

    `spec` has argv, env, cwd and limits; `stdio` the harness's three descriptors. Writes to `report` one line each of
    `S PID` (started) or `F ERRNO STEP` (it could not be), and `X STATUS` (exit code, or minus the signal) when it ended. End of
    file on `control` means that the guardian is dead.
    """
    code = 1
    try:
        os.setsid()
        _close_all_but({0, 1, 2, report, control, *stdio})
        become_subreaper()
        _keep(spec, stdio, report, control)
        code = 0
    except BaseException:  # noqa: BLE001 - said, not raised: the frames above this one are the guardian's
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _keep(spec: dict[str, Any], stdio: list[int], report: int, control: int) -> None:
    woken, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    leader = _start(spec, stdio, report)
    for fd in stdio:
        os.close(fd)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(woken, select.POLLIN)
    running = leader is not None
    while True:
        if running:
            running = not _reap(leader or 0, report)
        for fd, _ in poll.poll():
            if fd == control:
                _kill_all_below(10.0)
                return
            os.read(woken, 4096)


def _start(spec: dict[str, Any], stdio: list[int], report: int) -> int | None:
    """Forks and executes the harness; its pid, or None when it couldn't be executed."""
    mine, theirs = os.pipe2(os.O_CLOEXEC)
    keeper, leader = os.getpid(), os.fork()
    if leader == 0:
        _become_harness(spec, stdio, theirs, keeper)
    os.close(theirs)
    trouble = os.read(mine, 512)  # end of file once exec has closed the other end
    os.close(mine)
    os.write(report, b"F " + trouble + b"\n" if trouble else b"S %d\n" % leader)
    return None if trouble else leader


def _become_harness(spec: dict[str, Any], stdio: list[int], trouble: int, keeper: int) -> NoReturn:
    step = "session"
    try:
        os.setsid()
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:  # it died before the line above could count
            os._exit(1)
        signal.set_wakeup_fd(-1)
        for sig in (*DEAF_TO, signal.SIGPIPE, signal.SIGXFSZ):  # what is ignored here would stay ignored after exec
            signal.signal(sig, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        step = "limits"
        for name, value in spec["limits"].items():
            hard = resource.getrlimit(_LIMITS[name])[1]
            value = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(_LIMITS[name], (value, value))
        _prefer_for_oom()
        step = "cwd"
        os.chdir(spec["cwd"])
        step = "stdio"
        high = [os.dup(fd) for fd in stdio]  # clear of 0, 1, 2
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        step = "exec"
        os.execvpe(spec["argv"][0], spec["argv"], spec["env"])  # noqa: S606
    except BaseException as error:  # noqa: BLE001 - whatever it is, this process must not go on as a second guardian
        os.write(trouble, b"%d %s" % (getattr(error, "errno", None) or 0, step.encode()))
    finally:
        os._exit(127)


def _prefer_for_oom() -> None:
    """Under memory pressure the kernel takes a harness before a worker (raising this needs no privilege)."""
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as out:
            out.write("500")
    except OSError:
        return


def _reap(leader: int, report: int) -> bool:
    """Reaps orphans that ended. True, with the status reported, once `leader` has: it stays a zombie, see above."""
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return False
        if ended is None:
            return False
        if ended.si_pid == leader:
            status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            os.write(report, b"X %d\n" % status)
            return True
        os.waitpid(ended.si_pid, os.WNOHANG)


def _kill_all_below(seconds: float) -> None:
    until, me = time.monotonic() + seconds, os.getpid()
    while not proctree.is_bare(me) and time.monotonic() < until:
        proctree.kill_below(me)
        time.sleep(0.001)


def _close_all_but(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of this listing
