"""A server on loopback that gives prepared answers, one after the other, and keeps what it was asked: for what moto can't play."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple


class Asked(NamedTuple):
    """A request: its first line, its headers (names in lower case), its body."""

    line: str
    headers: dict[str, str]
    body: bytes


class Canned:
    """Answers are raw bytes of HTTP; an empty one closes the connection, None leaves the request without an answer."""

    def __init__(self, answers: Sequence[bytes | None]) -> None:
        self._answers = list(answers)
        self.asked: list[Asked] = []
        self._stopped = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, name="canned", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        kept: list[socket.socket] = []
        with suppress(OSError):
            while not self._stopped.is_set():
                connection, _ = self._socket.accept()
                connection.settimeout(5)
                with suppress(OSError):
                    if self._answer(connection):
                        connection.close()
                    else:
                        kept.append(connection)
        for connection in kept:
            connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        """Whether the connection is done with."""
        with connection.makefile("rb") as file:
            line = file.readline().decode().strip()
            if not line:
                return True
            headers = {}
            while header := file.readline().decode().strip():
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            if headers.get("expect") == "100-continue":
                connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            body = file.read(int(headers.get("content-length", 0)))
        self.asked.append(Asked(line, headers, body))
        answer = self._answers.pop(0) if self._answers else b""
        if answer is None:
            return False
        connection.sendall(answer)
        return True

    def stop(self) -> None:
        self._stopped.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


@contextmanager
def canned(answers: Sequence[bytes | None]) -> Iterator[Canned]:
    """A server for the time of the block."""
    server = Canned(answers)
    try:
        yield server
    finally:
        server.stop()


def http(status: str, body: bytes = b"", *, length: int | None = None, **headers: str) -> bytes:
    """An answer; `length` lies about the body's."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", "Connection: close"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
