"""A real gunicorn with the real configuration and worker class, over fakes: for what only shows with sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """One gunicorn on a port of its own; `stop` ends it and everything it started."""

    def __init__(self, log: Path, **env: str) -> None:
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(1024)
        self.port: int = listener.getsockname()[1]
        self._log = log
        argv = [sys.executable, "-m", "gunicorn", "--config", "python:app.gunicorn_conf", "--bind", f"fd://{listener.fileno()}"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [*argv, "tests.http.serving:create()"],
                cwd=ROOT, env={**os.environ, **env}, pass_fds=[listener.fileno()], stdout=out, stderr=out, start_new_session=True,
            )  # fmt: skip
        listener.close()
        self._await()

    def _await(self) -> None:
        end = time.monotonic() + 30
        while time.monotonic() < end and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.call("GET", "/healthz", timeout=5)[0] == 200:
                    return
        self.stop()
        raise AssertionError("the server didn't start: " + self.log())

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def failures(self) -> list[str]:
        """Lines of its log that tell of something nobody foresaw."""
        return [line for line in self.log().splitlines() if "Traceback" in line or '"level": "error"' in line]

    def stop(self, timeout: float = 10) -> float:
        """Sends SIGTERM and gives the seconds until it was gone; what is left after `timeout` is killed."""
        began = time.monotonic()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(5)
        return time.monotonic() - began

    def call(
        self, method: str, path: str, body: Any = None, *, token: str | None = "management", raw: bytes | None = None,
        headers: dict[str, str] | None = None, timeout: float = 20,
    ) -> tuple[int, dict[str, str], bytes]:  # fmt: skip
        """One request with the standard client: status, headers with lower-case names, body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        given = dict(headers or {})
        if token:
            given.setdefault("Authorization", f"Bearer {token}")
        if body is not None:
            raw = json.dumps(body).encode()
            given.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, raw, given)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def control(self, **order: Any) -> dict[str, Any]:
        """The state of the fakes, after `order` if one is given."""
        if order:
            self.call("POST", "/_control", order)
        state: dict[str, Any] = json.loads(self.call("GET", "/_control")[2])
        return state

    def until(self, condition: Any, timeout: float = 10) -> dict[str, Any]:
        """The state of the fakes as soon as `condition(state)` holds."""
        end = time.monotonic() + timeout
        while not condition(state := self.control()):
            if time.monotonic() > end:
                raise AssertionError(f"still {state} after {timeout} s")
            time.sleep(0.02)
        return state

    def connect(self, timeout: float = 20) -> socket.socket:
        """A plain connection, for requests that no client library would send."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout)

    def stream(self, path: str, *, token: str = "management", headers: str = "", timeout: float = 20) -> socket.socket:
        """An open event stream, its response not yet read."""
        connection = self.connect(timeout)
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: text/event-stream\r\nAuthorization: Bearer {token}\r\n{headers}\r\n".encode()
        )
        return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    """What arrives up to and with `mark`; what had arrived before if the connection ends first."""
    got = b""
    while mark not in got:
        piece = connection.recv(65536)
        if not piece:
            break
        got += piece
    return got


def read_all(connection: socket.socket) -> bytes:
    """What arrives until the connection ends."""
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := connection.recv(65536):
            got += piece
    return got
