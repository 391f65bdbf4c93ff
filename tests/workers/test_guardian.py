"""Harness trees die whole, by request, deadline, exit, and the death of any process that guards them. Rows B1, B2, D1."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.workers.procs import ENV, living, tag, until
from workers.process import Child, Deaf, Guardian, GuardianLost, Limits, SpawnFailed

DAEMON = "(env -i setsid sh -c 'sleep TAG & sleep TAG' &); "  # its parent, the subshell, ends at once

CHAIN = """
import os, sys, time
for _ in range(60):
    if os.fork(): time.sleep(3600)
time.sleep(3600)
"""
COMET = """
import os
while True:
    if os.fork(): os._exit(0)
    os.setsid()
    os.write(1, b".")
"""
RESPAWN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def keep():
    while True:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            time.sleep(3600)
        os.waitpid(pid, 0)
for _ in range(4):
    if os.fork() == 0: keep()
keep()
"""
MAINLESS = """
import ctypes, os, threading, time
print(os.getpid(), flush=True)
threading.Thread(target=time.sleep, args=(3600,)).start()
ctypes.CDLL(None).pthread_exit(None)
"""
# What runs, and how many processes of it are there when it is up.
SHAPES = {
    "plain": (["sleep", "TAG"], 1),
    "background job": (["sh", "-c", "sleep TAG & sleep TAG; true"], 3),
    "setsid grandchild": (["sh", "-c", "setsid sleep TAG & sleep TAG; true"], 3),
    "daemon with a cleared environment": (["sh", "-c", DAEMON + "sleep TAG; true"], 5),
    "deaf to SIGTERM": (["sh", "-c", "trap '' TERM HUP INT; sleep TAG; true"], 2),
    "stopped": (["sh", "-c", "sleep TAG & kill -STOP $!; kill -STOP $$; true TAG"], 2),
    "a chain of 60": ([sys.executable, "-S", "-c", CHAIN, "TAG"], 61),
    "children start again what dies": ([sys.executable, "-S", "-c", RESPAWN, "TAG"], 10),
}


def start(guardian: Guardian, argv: list[str], name: str, **more: object) -> Child:
    words = [word.replace("TAG", name) for word in argv]
    return guardian.spawn(words, env=ENV, cwd=Path("/"), **more)  # type: ignore[arg-type]


def shell(guardian: Guardian, command: str, name: str, **more: object) -> Child:
    return start(guardian, ["sh", "-c", command], name, **more)


def closed(child: Child) -> bool:
    """Whether every process that had the harness's stdout is gone: no look at a list of processes is as sure as this."""
    os.set_blocking(child.stdout.fileno(), False)
    while got := child.stdout.read(1 << 16):
        pass
    return got == b""


@pytest.mark.parametrize("shape", SHAPES)
def test_kill_leaves_nothing(guardian: Guardian, shape: str) -> None:
    argv, count = SHAPES[shape]
    name = tag()
    child = start(guardian, argv, name)
    until(lambda: len(living(name)) >= count)
    child.kill()
    assert living(name) == [] and closed(child)
    assert child.cause == "killed"
    child.kill()  # once more does no harm


def test_kill_meets_what_forks_and_exits_all_the_time(guardian: Guardian) -> None:
    child = start(guardian, ["sh", "-c", f"setsid {sys.executable} -S -c '{COMET}' & sleep TAG"], tag())
    for _ in range(50):
        assert child.stdout.read(1) == b"."
    child.kill()
    assert closed(child)


def test_kill_sees_a_process_whose_main_thread_ended(guardian: Guardian) -> None:
    """It looks like a zombie, but its other threads run."""
    child = start(guardian, ["sh", "-c", f"{sys.executable} -S -c '{MAINLESS}' & sleep TAG"], tag())
    pid = int(child.stdout.readline())
    until(lambda: "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text())
    child.kill()
    assert closed(child)


def test_kill_takes_only_its_own_tree(guardian: Guardian) -> None:
    one, other = tag(), tag()
    doomed, spared = (shell(guardian, DAEMON + "sleep TAG; true", name) for name in (one, other))
    until(lambda: len(living(one)) == 5 and len(living(other)) == 5)
    doomed.kill()
    assert closed(doomed) and living(one) == [] and len(living(other)) == 5
    assert spared.wait(0) is None


def test_what_an_ended_harness_left_is_dead_when_wait_returns(guardian: Guardian) -> None:
    name = tag()
    child = shell(guardian, DAEMON + "exit 7", name)
    assert child.wait(10) == 7
    assert child.cause == "exit" and living(name) == []


def test_deadline_kills_and_moves(guardian: Guardian) -> None:
    name = tag()
    now = time.monotonic()
    child = shell(guardian, DAEMON + "sleep TAG; true", name, deadline=now + 0.5)
    child.set_deadline(now + 1.2)
    assert child.wait(now + 1.1 - time.monotonic()) is None
    assert child.wait(5) == -9
    assert time.monotonic() - (now + 1.2) < 0.5
    assert child.cause == "deadline" and living(name) == []


def test_no_deadline_after_it_was_taken_back(guardian: Guardian) -> None:
    now = time.monotonic()
    child = shell(guardian, "sleep TAG", tag(), deadline=now + 4)
    child.set_deadline(None)
    assert child.wait(now + 4.5 - time.monotonic()) is None


def test_guardian_is_deaf_to_signals_and_in_its_own_session(guardian: Guardian) -> None:
    child = shell(guardian, "sleep TAG", tag())
    for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        for pid in (guardian.pid, child.keeper_pid):
            os.kill(pid, sig)
    shell(guardian, "true", "x").wait(5)  # an answer: it was served after the signals
    assert child.wait(0) is None
    sessions = {os.getsid(pid) for pid in (os.getpid(), guardian.pid, child.keeper_pid, child.pid)}
    assert len(sessions) == 4 and os.getpgid(child.pid) == child.pid


@pytest.mark.parametrize("victims", ["guardian", "keeper", "guardian and keeper"])
def test_a_dead_guard_leaves_no_tree(tmp_path: Path, victims: str) -> None:
    lost = threading.Event()
    guardian = Guardian.start(tmp_path, on_lost=lost.set)
    name = tag()
    # The daemon keeps its environment in the last case: with both guards gone at once nothing else tells whose it is.
    command = DAEMON if "and" not in victims else DAEMON.replace("env -i ", "")
    child = shell(guardian, command + "sleep TAG; true", name)
    until(lambda: len(living(name)) == 5)
    if "guardian" in victims:
        os.kill(guardian.pid, signal.SIGKILL)
    if "keeper" in victims:
        os.kill(child.keeper_pid, signal.SIGKILL)
    assert child.wait(10) == -9
    assert living(name) == []
    if "guardian" in victims:
        assert child.cause == "guardian" and lost.wait(5)
        with pytest.raises(GuardianLost):
            shell(guardian, "true", name)
        assert list(tmp_path.iterdir()) == []
    else:
        assert child.cause == "keeper"
        assert shell(guardian, "exit 4", name).wait(5) == 4  # the guardian goes on
    child.kill()
    guardian.close()


def test_close_kills_everything(tmp_path: Path) -> None:
    guardian = Guardian.start(tmp_path)
    name = tag()
    for _ in range(3):
        shell(guardian, DAEMON + "sleep TAG; true", name)
    until(lambda: len(living(name)) == 15)
    guardian.close()
    assert living(name) == [] and list(tmp_path.iterdir()) == []
    with pytest.raises(GuardianLost):
        shell(guardian, "true", name)


PROBE = """
import ctypes, os, resource
sig = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(sig))  # PR_GET_PDEATHSIG
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(sig.value, sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:-1], sorted(os.environ), os.getcwd(),
      [resource.getrlimit(r) for r in (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE)],
      int(status["SigBlk"], 16), int(status["SigIgn"], 16) & ~((1 << 12) | (1 << 24) | 0x180000000), sep="|")
"""
# Signals 32 and 33 are the C library's own: nobody can set them through it, and what started this test may ignore them.
LIBC_OWN = 0x180000000


def test_what_a_harness_starts_with(guardian: Guardian, tmp_path: Path) -> None:
    """Killed with its parent, three descriptors, only its environment, its limits, no blocked or ignored signals.

    SIGPIPE and SIGXFSZ are masked out of the last: the probe is a Python, which ignores them itself.
    """
    limits = Limits(nofile=77, fsize=1 << 20)
    child = guardian.spawn([sys.executable, "-I", "-S", "-c", PROBE], env={"A": "ü"}, cwd=tmp_path, limits=limits)
    said = (child.stdout.read(4096) or b"").decode()
    assert said.strip() == f"9|[0, 1, 2]|['A', 'BYRE_MARKER', 'LC_CTYPE']|{tmp_path}|[(0, 0), (77, 77), (1048576, 1048576)]|0|0"


def test_sigpipe_is_not_ignored(guardian: Guardian) -> None:
    child = guardian.spawn(["cat", "/proc/self/status"], env=ENV, cwd=Path("/"))
    ignored = [line for line in (child.stdout.read(8192) or b"").splitlines() if line.startswith(b"SigIgn")]
    assert int(ignored[0].split()[1], 16) & ~LIBC_OWN == 0


@pytest.mark.parametrize(
    ("argv", "cwd", "step"),
    [(["no-such-program"], "/", "exec"), (["/etc/passwd"], "/", "exec"), (["true"], "/no/such", "cwd")],
)
def test_spawn_says_what_failed(guardian: Guardian, argv: list[str], cwd: str, step: str) -> None:
    with pytest.raises(SpawnFailed) as failure:
        guardian.spawn(argv, env=ENV, cwd=Path(cwd))
    assert failure.value.step == step and failure.value.errno
    assert shell(guardian, "exit 3", "x").wait(5) == 3


def test_nothing_runs_that_could_not_be_recorded(guardian: Guardian, tmp_path: Path) -> None:
    for life in (tmp_path / "state").iterdir():
        life.rename(tmp_path / "moved")
    with pytest.raises(SpawnFailed):
        shell(guardian, "sleep TAG", tag())


def test_long_arguments_and_many_at_once(guardian: Guardian) -> None:
    long = "x" * 100_000
    children: list[Child] = []

    def run() -> None:
        child = guardian.spawn(["sh", "-c", 'printf "$1$V"; cat', "sh", long], env={**ENV, "V": long}, cwd=Path("/"))
        children.append(child)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for child in children:
        got = b""
        while len(got) < 200_000 and (part := child.stdout.read(65536)):
            got += part
        assert got == (long * 2).encode()
        child.send(b"end")
        child.stdin.close()
        assert child.stdout.read(10) == b"end"
        assert child.wait(5) == 0
        child.close()


def test_send_to_one_that_does_not_read(guardian: Guardian) -> None:
    child = shell(guardian, "sleep TAG", tag())
    with pytest.raises(Deaf):
        child.send(b"x" * (1 << 20), timeout=0.2)
    child.kill()
    with pytest.raises(Deaf):
        child.send(b"x", timeout=0.2)


def test_guardian_is_small(guardian: Guardian) -> None:
    child = shell(guardian, "sleep TAG", tag())
    for pid, most_kib in ((guardian.pid, 20_000), (child.keeper_pid, 18_000)):
        resident = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS"))
        assert int(resident.split()[1]) < most_kib
