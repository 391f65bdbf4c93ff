"""A whole `byre dev` for a test: started on a free port with a data directory of its own, spoken to over HTTP, and gone afterwards.

@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=2, env={"BYRE_LEASE_SECONDS": "3"}) as stack:
        yield stack
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

ROOT = Path(__file__).resolve().parents[2]
BYRE = [sys.executable, "-P", "-m", "app.cli"]
START_SECONDS = 60.0
ENDED = ("turn.completed", "turn.failed", "turn.interrupted")
T = TypeVar("T")


class Reply(NamedTuple):
    """One answer. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def until(what: str, ask: Callable[[], T], *, seconds: float = 30.0, pause: float = 0.05) -> T:
    """The first true answer of `ask`. Fails, saying `what` was waited for, when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = ask()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            raise AssertionError(f"not in {seconds:g} s: {what}")
        time.sleep(pause)


def environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """This process's environment without settings of Byre, so that the developer's own don't change a test, plus `extra`."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("BYRE_")}
    return {**env, "PYTHONPATH": str(ROOT), **(extra or {})}


class Stack:
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

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 30.0,
    ) -> Reply:
        """One request, with the management token unless another (or "" for none) is given; `body` is sent as JSON."""
        with self._connection(timeout) as connection:
            connection.request(method, path, None if body is None else json.dumps(body), self._headers(token, body, headers))
            response = connection.getresponse()
            data = response.read()
            return Reply(response.status, {name.lower(): value for name, value in response.getheaders()}, data)

    def stream(
        self, path: str, *, token: str | None = None, headers: dict[str, str] | None = None, timeout: float = 30.0
    ) -> Iterator[dict[str, str]]:
        """The frames of an SSE stream as their fields, comments and `retry:` too (under "" and "retry"), until it ends.

        `timeout` is the longest silence.
        """
        accept = {"Accept": "text/event-stream", **(headers or {})}
        with self._connection(timeout) as connection:
            connection.request("GET", path, None, self._headers(token, None, accept))
            response = connection.getresponse()
            assert response.status == 200, (response.status, response.read(300))
            fields: dict[str, str] = {}
            while line := response.readline().decode():
                name, _, value = line.rstrip("\r\n").partition(":")
                if line.strip():
                    value = value.removeprefix(" ")
                    fields[name] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value
                elif fields:
                    yield fields
                    fields = {}

    # Sessions, as tests of other parts need them

    def session(self, harness: str = "script", **config: Any) -> str:
        """A new session's id."""
        reply = self.call("POST", "/sessions", {"harness": harness, "config": {"model": "script-1", "tools": [], **config}})
        assert reply.status == 201, reply
        return str(reply.json["id"])

    def say(self, session: str, text: str, **more: Any) -> dict[str, Any]:
        """Sends a message; returns its event."""
        reply = self.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": text, **more})
        assert reply.status == 202, reply
        event: dict[str, Any] = reply.json
        return event

    def events(self, session: str, after: str | None = None) -> list[dict[str, Any]]:
        """All events behind `after`, page by page."""
        found: list[dict[str, Any]] = []
        while True:
            where = f"&after={quote(after, safe='')}" if after else ""
            reply = self.call("GET", f"/sessions/{session}/events?limit=1000{where}")
            assert reply.status == 200, reply
            page = reply.json
            found += page["events"]
            after = page["next_cursor"] or after
            if len(page["events"]) < 1000:
                return found

    def turn(self, session: str, text: str, *, seconds: float = 60.0) -> list[dict[str, Any]]:
        """Sends a message and waits until its turn has ended; returns the events behind the message."""
        cursor = str(self.say(session, text)["cursor"])

        def ended() -> list[dict[str, Any]]:
            events = self.events(session, cursor)
            return events if any(event["type"] in ENDED for event in events) else []

        return until(f"the turn of {text!r} ends", ended, seconds=seconds)

    def _look(self) -> bool:
        assert self.process.poll() is None, f"byre dev ended with {self.process.returncode}:\n{self.text()[-3000:]}"
        if self.ready_file.exists():
            self.reread()
        return bool(self.info) and self.ready_file.exists()

    @contextlib.contextmanager
    def _connection(self, timeout: float) -> Iterator[http.client.HTTPConnection]:
        parts = urlsplit(self.info["url"])
        assert parts.hostname
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        try:
            yield connection
        finally:
            connection.close()

    def _headers(self, token: str | None, body: Any, more: dict[str, str] | None) -> dict[str, str]:
        headers = dict(more or {})
        token = self.info["management_token"] if token is None else token
        if token:
            headers.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        return headers

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
