"""The worker's end of the tool bridge: a unix socket on which a harness (or its MCP server) calls the session's tools.

Protocol, JSON lines: `{"id", "tool", "arguments"}` there; `{"id", "progress"}` any number of times and `{"id", "result"}` once back.
`{"id", "list": true}` asks for the descriptors: `{"id", "tools": [...]}`.

Rules: the socket lies in a directory that only this user can enter; at most `AT_ONCE` calls run at once per harness; a line has at most
`LINE_BYTES`; a connection that closes cancels its calls. `close` ends every thread.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import orjson
import structlog

AT_ONCE = 32
LINE_BYTES = 1 << 20

logger = structlog.get_logger(__name__)


class Caller(Protocol):
    """Who serves the calls."""

    def descriptors(self) -> list[dict[str, Any]]: ...

    def call(
        self, name: str, arguments: Any, progress: Callable[[Any], None], cancelled: threading.Event
    ) -> dict[str, Any]: ...


class BridgeServer:
    """Serves one harness. `path` is the socket's."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._folder = Path(tempfile.mkdtemp(prefix="byre-"))  # 0700, and short: a socket's path has 107 bytes at most
        self.path = self._folder / secrets.token_hex(4)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(self.path))
        self._socket.listen(4 * AT_ONCE)  # a connection with a deadline is refused, not queued, when this is full
        self._closed = False
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, name="bridge", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the socket and every connection; calls that run are cancelled."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        with self._lock:
            left = list(self._connections)
        for connection in left:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        with contextlib.suppress(OSError):
            self.path.unlink(missing_ok=True)
            self._folder.rmdir()

    def _accept(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with self._lock:
                self._connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), name="bridge-calls", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        cancelled = threading.Event()
        sending = threading.Lock()
        try:
            with connection.makefile("rb") as lines:
                while line := lines.readline(LINE_BYTES + 1):
                    if len(line) > LINE_BYTES:
                        break
                    self._take(connection, sending, cancelled, line)
        except OSError:
            logger.debug("bridge connection broken")
        finally:
            cancelled.set()
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _take(self, connection: socket.socket, sending: threading.Lock, cancelled: threading.Event, line: bytes) -> None:
        def send(answer: dict[str, Any]) -> None:
            with sending, contextlib.suppress(OSError):
                connection.sendall(orjson.dumps(answer) + b"\n")

        try:
            asked = orjson.loads(line)
            number = asked["id"]
            if asked.get("list"):
                send({"id": number, "tools": self._caller.descriptors()})
                return
            name, arguments = str(asked["tool"]), asked.get("arguments", {})
        except (orjson.JSONDecodeError, KeyError, TypeError):
            send({"id": None, "error": "not a call"})
            return

        def run() -> None:
            try:
                result = self._caller.call(name, arguments, lambda p: send({"id": number, "progress": p}), cancelled)
                send({"id": number, "result": result})
            finally:
                self._slots.release()

        self._slots.acquire()
        threading.Thread(target=run, name="bridge-call", daemon=True).start()
