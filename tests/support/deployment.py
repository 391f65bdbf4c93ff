"""A deployment as in production: several API processes and workers, started one by one, on one Redis and one store.

with deployment(apis=2, workers=2, store=url) as it:
    it.apis[0].say(session, "/say hello")
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from app.notify import Listener
from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.client import Client, until
from tests.support.dev import BYRE, START_SECONDS, environment
from tests.support.redis_server import PrivateRedis

TENANT = "test"
S3_KEYS = {"AWS_ACCESS_KEY_ID": "test-access-key", "AWS_SECRET_ACCESS_KEY": "test-secret-key"}


class Process:
    """One process of the product. It may be ended and started again."""

    def __init__(self, argv: list[str], env: dict[str, str], output: Path) -> None:
        self.argv, self.env, self.output = argv, env, output
        self.running: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.running, "not started"
        return self.running.pid

    def launch(self) -> None:
        """Starts it without waiting."""
        with self.output.open("ab") as out:
            self.running = subprocess.Popen(
                self.argv,
                env=self.env,
                cwd=self.output.parent,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
            )

    def end(self, number: signal.Signals = signal.SIGTERM, *, seconds: float = 40.0) -> int:
        """Signals it and waits for its end; its exit status."""
        self.signal(number)
        return self.ended(seconds=seconds)

    def ended(self, *, seconds: float = 40.0) -> int:
        """Waits for its end; its exit status."""
        assert self.running
        return self.running.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Signals it; nothing happens if it has ended."""
        assert self.running
        with contextlib.suppress(ProcessLookupError):
            self.running.send_signal(number)

    def text(self) -> str:
        """All that it has printed."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Api(Process, Client):
    """`byre api` on a port of its own."""

    def __init__(self, env: dict[str, str], output: Path, token: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        super().__init__([*BYRE, "api"], {**env, "BYRE_PORT": str(port)}, output)
        self.info = {"url": f"http://127.0.0.1:{port}", "management_token": token}

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self.launch()
        until("the API serves", self.serves, seconds=START_SECONDS)

    def serves(self) -> bool:
        """Whether it is ready. Fails if it has ended."""
        assert self.running
        assert self.running.poll() is None, f"it ended:\n{self.text()[-3000:]}"
        with contextlib.suppress(OSError):
            return self.call("GET", "/readyz").status == 200
        return False


class Worker(Process):
    """`byre worker`."""

    def __init__(self, env: dict[str, str], output: Path) -> None:
        self._listener = Listener()
        super().__init__([*BYRE, "worker"], {**env, "NOTIFY_SOCKET": self._listener.address}, output)

    def launch(self) -> None:
        """Starts it without waiting."""
        self._listener.told()  # what a former one said doesn't count
        super().launch()

    def start(self) -> None:
        """Starts it and waits until it claims."""
        self.launch()
        until("the worker claims", self.claims, seconds=START_SECONDS)

    def claims(self) -> bool:
        """Whether it has said that it is ready since the last call. Fails if it has ended."""
        assert self.running
        assert self.running.poll() is None, f"it ended:\n{self.text()[-3000:]}"
        return self._listener.told()


class Deployment:
    """`apis` and `workers` are started; `data` is a directory for whatever a test needs."""

    def __init__(self, data: Path, store: str, env: dict[str, str]) -> None:
        self.data, self.store = data, store
        (data / "redis").mkdir()
        self.redis = PrivateRedis(data / "redis")
        self.env = environment(
            {
                "BYRE_OBJECT_STORE": store,
                "BYRE_REDIS_URL": self.redis.url,
                "BYRE_SECRET_KEY": secrets.token_hex(32),
                "BYRE_WORKSPACES": str(data / "workspaces"),
                "BYRE_REPO_ROOTS": str(data),
                "BYRE_VENDOR": "script",
                "BYRE_LOG_FORMAT": "console",
                "PYTHONUNBUFFERED": "1",
                **env,
            }
        )
        self.token = ""
        self.apis: list[Api] = []
        self.workers: list[Worker] = []

    def restart(self) -> None:
        """Ends all APIs and workers, cleanly, and starts them again."""
        everything = [*self.apis, *self.workers]
        for each in everything:
            each.signal(signal.SIGTERM)
        for each in everything:
            assert each.ended() == 0, each.text()[-3000:]
        self._launch()

    def _launch(self) -> None:
        for each in (*self.apis, *self.workers):
            each.launch()
        until("all serve", lambda: all(a.serves() for a in self.apis), seconds=START_SECONDS)
        for worker in self.workers:
            until("all claim", worker.claims, seconds=START_SECONDS)

    def start(self, apis: int, workers: int) -> None:
        """Starts all of it, for the first time."""
        self.redis.start()
        keys = {"access_key": self.env.get("AWS_ACCESS_KEY_ID"), "secret_key": self.env.get("AWS_SECRET_ACCESS_KEY")}
        opened = open_store(self.store, s3_endpoint=self.env.get("BYRE_S3_ENDPOINT"), region="us-east-1", **keys)
        try:
            _, self.token = Tokens(opened, self.env["BYRE_SECRET_KEY"]).create(TENANT, "management", login="tester")
        finally:
            opened.close()
        self.apis = [Api(self.env, self.data / f"api-{n}.log", self.token) for n in range(apis)]
        self.workers = [Worker(self.env, self.data / f"worker-{n}.log") for n in range(workers)]
        self._launch()

    def show(self) -> None:
        """Prints what its processes have said last."""
        for log in sorted(self.data.glob("*.log")):
            sys.stderr.write(f"\n{log} ends with:\n{log.read_text(errors='replace')[-6000:]}\n")

    def processes(self) -> list[int]:
        """Every live process of it, however it is called and whoever its parent is by now."""
        return owned(self.data)

    def stop(self) -> None:
        """Ends everything, however it is."""
        for each in (*self.apis, *self.workers):
            if each.running and each.running.poll() is None:
                each.running.terminate()
        deadline = time.monotonic() + 20
        for each in (*self.apis, *self.workers):
            if each.running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    each.running.wait(max(0.1, deadline - time.monotonic()))
        self.redis.stop()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def deployment(
    *, apis: int = 1, workers: int = 1, store: str | None = None, env: dict[str, str] | None = None
) -> Iterator[Deployment]:
    """A started deployment, on a directory unless `store` says otherwise. Gone afterwards; its directory stays on failure."""
    data = Path(tempfile.mkdtemp(prefix="byre-t-"))
    it = Deployment(data, store or "file://" + quote(str(data / "store")), dict(env or {}))
    try:
        it.start(apis, workers)
        yield it
    except BaseException:
        it.show()
        raise
    finally:
        it.stop()
    shutil.rmtree(data, ignore_errors=True)


def owned(data: Path) -> list[int]:
    """Live processes that name `data` in their command line, environment or working directory, but for this one."""
    mark = os.fsencode(data)
    found = []
    for pid in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
        try:
            if pid == os.getpid() or Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                continue
            parts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
            if any(mark in part for part in (*parts, os.fsencode(Path(f"/proc/{pid}/cwd").readlink()))):
                found.append(pid)
        except OSError:
            continue  # ended while we looked
    return found


@contextlib.contextmanager
def moto_process() -> Iterator[dict[str, Any]]:
    """A stand-in for S3 in a process of its own: the `env` that reaches it, and the `store` address of an empty bucket."""
    code = (
        "import sys; from tests.support.moto_server import MotoServer; s = MotoServer(); "
        "print(s.endpoint, s.bucket(), flush=True); sys.stdin.read(); s.stop()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        endpoint, bucket = process.stdout.readline().split()
        try:
            yield {"env": {"BYRE_S3_ENDPOINT": endpoint, **S3_KEYS}, "store": f"s3://{bucket}/deployment"}
        finally:
            process.communicate(timeout=20)
