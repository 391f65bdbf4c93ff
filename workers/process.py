"""The worker's side of its harness processes: start them, write to them, set their deadlines, kill them whole.

Rules: a worker never forks or signals a harness itself; the guardian does (guardian.py), also when the worker is dead or
stopped. `kill` returns only when no descendant is left. If the guardian is lost the worker must stop: what is recorded is
killed, and every later call raises GuardianLost.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
import marshal
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from workers import lives, proctree
from workers.lives import StillAlive, kill_leftovers

__all__ = ["Child", "Deaf", "Guardian", "GuardianLost", "Limits", "SpawnFailed", "StillAlive", "kill_leftovers"]

log = structlog.get_logger(__name__)

_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from workers.guardian import main; main()"
_ROOT = str(Path(__file__).resolve().parent.parent)
_MARKER = re.compile(r"[A-Za-z0-9-]{8,64}")
_ANSWER_SECONDS = 10.0
_PIPE_BYTES = 1 << 18  # default 64 KiB; a flooding harness and its reader change places four times less often


class GuardianLost(Exception):
    """The guardian of this worker ended: nothing protects its harnesses any more, so it must stop."""


class SpawnFailed(Exception):
    """The harness could not be started. `step` is what failed (cwd, limits, exec, record, ...), `errno` why (0: not known)."""

    def __init__(self, step: str, errno: int) -> None:
        super().__init__(f"harness not started: {step}: {os.strerror(errno) if errno else 'unknown reason'}")
        self.step, self.errno = step, errno


class Deaf(Exception):
    """The harness doesn't read its input (in time), or has closed it."""


@dataclass(frozen=True)
class Limits:
    """Resource limits of a harness and each process below it (setrlimit(2)); None leaves the worker's own.

    `core` and `fsize` (largest file it may write) are bytes, `nofile` descriptors, `nproc` processes of its user in all.
    """

    core: int | None = 0
    nofile: int | None = 4096
    nproc: int | None = None
    fsize: int | None = None


class Child:
    """A running harness. `stdin` is non-blocking: use `send`. Its owner ends it by `kill` and `close`, however it ended."""

    def __init__(self, guardian: Guardian, number: int, marker: str, pipes: tuple[int, int, int]) -> None:
        self._guardian, self._number, self.marker = guardian, number, marker
        self.pid, self.keeper_pid = 0, 0
        os.set_blocking(pipes[0], False)
        self.stdin = io.FileIO(pipes[0], "wb")
        self.stdout = io.FileIO(pipes[1], "rb")
        self.stderr = io.FileIO(pipes[2], "rb")
        self.returncode: int | None = None
        self.cause: str | None = None  # exit, killed, deadline, worker, keeper or guardian; None while it runs
        self._told, self._gone = threading.Event(), threading.Event()
        self._sending = threading.Lock()
        self._failure: Exception | None = None

    def send(self, data: bytes, timeout: float = 10.0) -> None:
        """Writes all of `data` to its stdin. Raises Deaf if it isn't taken within `timeout` seconds or was closed there."""
        until, left = time.monotonic() + timeout, memoryview(data)
        poll = select.poll()
        with self._sending:
            try:
                poll.register(self.stdin, select.POLLOUT)
                while left:
                    left = left[self.stdin.write(left) or 0 :]
                    if left and not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                        raise Deaf(f"the harness took no input for {timeout:g} s ({len(left)} bytes left)")
            except (BrokenPipeError, ValueError) as error:
                raise Deaf("the harness has closed its input") from error

    def set_deadline(self, at: float | None) -> None:
        """The whole tree is killed when CLOCK_MONOTONIC passes `at` (seconds, as of time.monotonic()); None: no deadline."""
        self._guardian._request({"op": "deadline", "id": self._number, "at": at})

    def kill(self, timeout: float = 10.0) -> None:
        """SIGKILLs the harness and every descendant; returns when they are proven dead. Idempotent.

        Raises StillAlive after `timeout` seconds (the guardian goes on trying), GuardianLost if there is no guardian any more
        and what is recorded couldn't be killed either.
        """
        if not self._gone.is_set():
            with contextlib.suppress(GuardianLost):
                self._guardian._request({"op": "kill", "id": self._number})
        if self._gone.wait(timeout):
            return
        if self._guardian.lost.is_set():
            raise GuardianLost(f"harness {self.pid} may still run")
        raise StillAlive([process.pid for process in proctree.descendants(proctree.everyone(), self.keeper_pid)])

    def wait(self, timeout: float | None = None) -> int | None:
        """Its exit code (minus the signal's number if one ended it), or None if it runs on after `timeout` seconds.

        When the harness ends by itself what it left behind is killed first, so after this nothing of it runs.
        """
        return self.returncode if self._gone.wait(timeout) else None

    def close(self) -> None:
        """Closes our ends of its pipes. The process isn't touched."""
        for pipe in (self.stdin, self.stdout, self.stderr):
            with contextlib.suppress(OSError):
                pipe.close()

    def _settle(self, status: int, cause: str) -> None:
        if self._failure is None and not self._told.is_set():
            lost = cause == "guardian"
            self._failure = GuardianLost("the guardian ended") if lost else SpawnFailed(f"ended at once ({cause})", 0)
        self.returncode, self.cause = status, cause
        self._gone.set()
        self._told.set()


class Guardian:
    """A worker's guardian process, seen from the worker; safe for many threads. Made by `start`, ended by `close`."""

    def __init__(
        self, process: subprocess.Popen[bytes], channel: socket.socket, life: str, on_lost: Callable[[], None]
    ) -> None:
        self.pid = process.pid
        self.lost = threading.Event()
        self._process, self._channel, self._life, self._on_lost = process, channel, life, on_lost
        self._numbers = itertools.count(1)
        self._children: dict[int, Child] = {}
        self._lock, self._closing = threading.Lock(), False
        self._listener = threading.Thread(target=self._listen, name="guardian-listener", daemon=True)
        self._listener.start()

    @classmethod
    def start(cls, state_dir: Path, on_lost: Callable[[], None] = lambda: None) -> Guardian:
        """Starts the guardian. `state_dir` may be shared by the workers of a host; call `kill_leftovers` on it first.

        `on_lost` is called once, from another thread, if the guardian ends before `close`. Raises OSError.
        """
        life = lives.begin(state_dir, secrets.token_hex(8), os.getpid())
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, str(theirs.fileno()), life],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                cwd="/",
                env={},
            )
        lives.own(life, process.pid)
        ours.settimeout(None)
        return cls(process, ours, life, on_lost)

    def spawn(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        marker: str | None = None,
        limits: Limits | None = None,
        deadline: float | None = None,
    ) -> Child:
        """Starts `argv` with exactly `env` and BYRE_MARKER, in `cwd`, in its own session and process group.

        `deadline` as in Child.set_deadline, in force from the first moment; `marker` is random unless given (8 to 64 of
        [A-Za-z0-9-], unique). Raises SpawnFailed or GuardianLost.
        """
        marker = marker or secrets.token_hex(16)
        if not _MARKER.fullmatch(marker):
            raise ValueError("marker")
        ends = [os.pipe2(os.O_CLOEXEC) for _ in range(3)]
        ours = (ends[0][1], ends[1][0], ends[2][0])
        theirs = [ends[0][0], ends[1][1], ends[2][1]]
        child = Child(self, next(self._numbers), marker, ours)
        self._children[child._number] = child
        try:
            with contextlib.suppress(OSError):  # over the user's quota of pipe pages
                fcntl.fcntl(ours[1], fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            spec = {
                "argv": [os.fsencode(arg) for arg in argv],
                "env": {os.fsencode(key): os.fsencode(value) for key, value in {**env, proctree.MARKER: marker}.items()},
                "cwd": os.fsencode(cwd),
                "limits": {name: value for name, value in asdict(limits or Limits()).items() if value is not None},
            }
            request = {"op": "spawn", "id": child._number, "marker": marker, "deadline": deadline, **spec}
            self._request(request, theirs)
        except BaseException:
            del self._children[child._number]
            child.close()
            raise
        finally:
            for fd in theirs:
                os.close(fd)
        return self._started(child)

    def children(self) -> list[Child]:
        """The harnesses that aren't proven dead."""
        return list(self._children.values())

    def close(self, timeout: float = 15.0) -> None:
        """Kills all harnesses and ends the guardian. Raises StillAlive if it could not within `timeout` seconds."""
        self._closing = True
        with contextlib.suppress(OSError):
            self._channel.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its keepers go on killing
            lives.kill_recorded(self._life, time.monotonic() + 1.0)
        finally:
            self._listener.join(5.0)
            self._channel.close()

    def _started(self, child: Child) -> Child:
        answered = child._told.wait(_ANSWER_SECONDS)
        if answered and child._failure is None:
            return child
        try:
            child.kill()
        finally:
            child.close()
        raise child._failure or SpawnFailed("no answer in time", 0)

    def _request(self, frame: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        body = marshal.dumps(frame)
        data = len(body).to_bytes(4, "big") + body
        with self._lock:
            if self.lost.is_set() or self._closing:
                raise GuardianLost("the guardian has ended")
            try:
                # Descriptors travel with the first byte, so they are there before the frame is whole.
                sent = socket.send_fds(self._channel, [data], list(descriptors)) if descriptors else 0
                self._channel.sendall(data[sent:])
            except OSError as error:
                raise GuardianLost("the guardian has ended") from error

    def _listen(self) -> None:
        buffer = bytearray()
        while data := self._receive():
            buffer += data
            while len(buffer) >= 4 and len(buffer) >= (end := 4 + int.from_bytes(buffer[:4], "big")):
                frame = marshal.loads(buffer[4:end])  # noqa: S302 - from our own child, over a socketpair
                del buffer[:end]
                self._note(frame)
        self._ended()

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(1 << 16)
        except OSError:
            return b""

    def _note(self, frame: dict[str, Any]) -> None:
        child = self._children.get(frame["id"])
        if child is None:
            return
        if frame["event"] == "started":
            child.pid, child.keeper_pid = frame["pid"], frame["keeper"]
            child._told.set()
        elif frame["event"] == "failed":
            child._failure = SpawnFailed(frame["step"], frame["errno"])
            child._told.set()
            if frame["step"] == "spawn":  # there never was a process, so no `gone` follows
                del self._children[frame["id"]]
                child._settle(0, "failed")
        else:
            del self._children[frame["id"]]
            child._settle(frame["status"], frame["cause"])

    def _ended(self) -> None:
        self.lost.set()
        self._process.wait()
        if self._closing and not self._children:
            return
        log.error("guardian lost", guardian_pid=self.pid, harnesses=len(self._children))
        try:
            lives.kill_recorded(self._life, time.monotonic() + 10.0)
            lives.end(self._life)
            for child in list(self._children.values()):
                child._settle(-9, "guardian")
        except StillAlive as error:
            log.error("harness survives", pids=error.pids)
        finally:
            self._on_lost()
