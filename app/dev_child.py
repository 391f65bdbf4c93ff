"""One child of `byre dev`: started, listened to, told to stop, and replaced when it dies.

Rules: a child leads its own process group and dies with `byre dev`, however that ends. Whatever of its group outlives it is
killed before it is replaced, so that two of one kind never run. Nothing here waits or blocks.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from app import processes
from app.notify import Listener

LONGEST_LINE = 64 * 1024
"""Bytes of one line of output; a longer one is shown in pieces."""
SETTLED = 10.0
"""A child that lived this many seconds has started well: its next death is answered at once."""
FIRST_DELAY, LONGEST_DELAY = 0.1, 5.0


class Child:
    """One child process and its successors. `name` is shown, `kind` is "redis", "api" or "worker".

    `announces`: it sends READY=1 (see `app/notify.py`) when it has started. `silent`: its output has ended.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        announces: bool = False,
        directory: Path | None = None,
    ) -> None:
        self.name = name
        self.kind = kind
        self.failures = 0
        self.start_at = 0.0
        self.last_exit: int | None = None
        self.silent = False
        self._argv = list(argv)
        self._env = dict(env)
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._listener = Listener() if announces else None
        self._announced = False
        self._started_at = 0.0
        self._partial = b""
        if self._listener:
            self._env["NOTIFY_SOCKET"] = self._listener.address

    @property
    def pid(self) -> int | None:
        """Its pid, None while none runs."""
        return self._process.pid if self._process else None

    @property
    def settled(self) -> bool:
        """It runs, and has said that it is ready if it is one that says so."""
        if self._process is None:
            return False
        if self._listener and self._listener.told():
            self._announced = True
        return self._announced or self._listener is None

    def fileno(self) -> int:
        """Where its output is read."""
        assert self._process and self._process.stdout
        return self._process.stdout.fileno()

    def start(self) -> None:
        """Starts it. Raises OSError if the program can't be run."""
        if self._listener:
            self._listener.told()  # what a dead predecessor said doesn't count
        self._announced = self.silent = False
        self._partial = b""
        self._started_at = time.monotonic()
        self._process = subprocess.Popen(
            self._argv,
            env=self._env,
            cwd=self._directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            # Safe: byre dev has one thread, so no lock can be held by another one at the fork.
            preexec_fn=partial(processes.die_with_parent, os.getpid()),
        )
        os.set_blocking(self.fileno(), False)

    def lines(self) -> list[str]:
        """The whole lines that it has written since the last call."""
        try:
            data = os.read(self.fileno(), LONGEST_LINE)
        except BlockingIOError:
            return []
        *whole, rest = (self._partial + data).split(b"\n")
        self.silent = not data
        if rest and (self.silent or len(rest) >= LONGEST_LINE):
            whole.append(rest)
            rest = b""
        self._partial = rest
        return [line.decode("utf-8", "replace").rstrip("\r") for line in whole]

    def dead(self) -> bool:
        """It has ended and `collect` is due."""
        return self._process is not None and bool(os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT))

    def collect(self) -> list[str]:
        """After its death: kills the rest of its group, plans its successor, returns its last lines."""
        process = self._process
        assert process and process.stdout
        self.kill()  # while its zombie still holds the number, so that nobody else's group can have it
        self.last_exit = process.wait()
        lines: list[str] = []
        while more := self.lines():
            lines += more
        process.stdout.close()
        self._process = None
        now = time.monotonic()
        self.failures = 0 if now - self._started_at >= SETTLED else self.failures + 1
        self.start_at = now + min(FIRST_DELAY * 2 ** max(self.failures - 1, 0), LONGEST_DELAY)
        return lines

    def terminate(self) -> None:
        """Asks it to stop."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kills its whole process group."""
        if self._process:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Frees what a child that won't be started again still holds."""
        if self._listener:
            self._listener.close()
