"""A whole `byre dev` for a test: started on a free port with a data directory of its own, spoken to over HTTP, and gone afterwards.

@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=2, env={"BYRE_LEASE_SECONDS": "3"}) as stack:
        yield stack
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.client import Client, until

ROOT = Path(__file__).resolve().parents[2]
BYRE = [sys.executable, "-P", "-m", "app.cli"]
START_SECONDS = 60.0


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of Byre, so that the developer's own don't change a test, plus `extra`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("BYRE_")}
    return {**env, "PYTHONPATH": str(ROOT), **(extra or {})}


class Stack(Client):
    """One `byre dev` and its data directory, which lives on between `stop` or `kill` and the next `start`."""

    def __init__(self, data: Path, *, workers: int = 1, env: dict[str, str] | None = None) -> None:
        self.data = data
        self.state = data / "state"
        self.ready_file = data / "ready.json"
        self.output = data / "dev.log"
        self.workers = workers
        self.env = environment({"BYRE_REPO_ROOTS": str(data), **(env or {})})
        self.info: dict[str, Any] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "not started"
        return self._process

    @property
    def pids(self) -> list[int]:
        """The children, as the ready file named them last."""
        return [self.info["api_pid"], *self.info["worker_pids"], self.info["redis_pid"]]

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self.launch()
        until("byre dev serves", self._look, seconds=START_SECONDS, pause=0.02)

    def launch(self, *flags: str) -> None:
        """Starts it without waiting."""
        self.ready_file.unlink(missing_ok=True)
        argv = [*BYRE, "dev", "--port", "0", "--data", str(self.state), "--workers", str(self.workers)]
        with self.output.open("ab") as out:
            self._process = subprocess.Popen(
                [*argv, "--ready-file", str(self.ready_file), *flags],
                cwd=self.data, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip

    def stop(self, *, seconds: float = 15.0) -> int:
        """Stops it as Ctrl-C or a service manager does; returns its exit status."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def kill(self) -> None:
        """Ends everything at once, as a power cut does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pid in self.pids if self.info else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def reread(self) -> dict[str, Any]:
        """The ready file as it is now."""
        self.info = json.loads(self.ready_file.read_text())
        return self.info

    def text(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace")

    def processes(self) -> list[int]:
        """Every live process of it, however it is called and whoever its parent is by now."""
        return [pid for pid in map(int, (path.name for path in Path("/proc").glob("[0-9]*"))) if self._owns(pid)]

    def _look(self) -> bool:
        assert self.process.poll() is None, f"byre dev ended with {self.process.returncode}:\n{self.text()[-3000:]}"
        if self.ready_file.exists():
            self.reread()
        return bool(self.info) and self.ready_file.exists()

    def _owns(self, pid: int) -> bool:
        mark = os.fsencode(self.data)
        try:
            if pid == os.getpid() or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return False
            return any(
                mark in Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")
            ) or mark in os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
        except OSError:
            return False  # ended while we looked


@contextlib.contextmanager
def running(*, workers: int = 1, env: dict[str, str] | None = None, start: bool = True) -> Iterator[Stack]:
    """A started stack, or one that the test starts itself. Everything of it is gone afterwards; its directory stays on failure."""
    data = Path(tempfile.mkdtemp(prefix="byre-t-"))
    stack = Stack(data, workers=workers, env=env)
    try:
        if start:
            stack.start()
        yield stack
    except BaseException:
        sys.stderr.write(f"\n{data}/dev.log ends with:\n{stack.text()[-4000:] if stack.output.exists() else ''}\n")
        raise
    finally:
        if stack._process and stack._process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                stack.stop()
        for pid in stack.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    shutil.rmtree(data, ignore_errors=True)
