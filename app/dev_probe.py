"""Whether the API and the private Redis answer, asked without ever waiting.

Rules: `byre dev` has one thread, which must go on showing output and noticing deaths while a server is still starting. So a question
is sent at one look and its answer read at a later one.
"""

from __future__ import annotations

import contextlib
import socket
import time
from urllib.parse import unquote, urlsplit

PATIENCE = 5.0
"""Seconds after which a question without an answer is asked again."""
CONNECT_SECONDS = 0.2
"""A connection to this machine is made or refused at once; this is for a full queue."""


class ApiProbe:
    """Asks `/readyz` at `host`:`port`."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host.strip("[]"), port)
        self._socket: socket.socket | None = None
        self._asked_at = 0.0

    def look(self) -> bool:
        """Whether a yes has come. Asks if nothing is asked; to be called again until it is true."""
        if self._socket is None:
            self._ask()
            return False
        try:
            answer = self._socket.recv(64)
        except BlockingIOError:
            if time.monotonic() - self._asked_at > PATIENCE:
                self.close()
            return False
        except OSError:
            answer = b""
        self.close()
        return answer.split(b" ")[1:2] == [b"200"]

    def close(self) -> None:
        """Forgets the question."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _ask(self) -> None:
        with contextlib.suppress(OSError):
            self._socket = socket.create_connection(self._address, CONNECT_SECONDS)
            self._socket.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            self._socket.setblocking(False)
            self._asked_at = time.monotonic()


def redis_accepts(url: str) -> bool:
    """Whether the server at `url` takes connections."""
    parts = urlsplit(url)
    with contextlib.suppress(OSError):
        if parts.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CONNECT_SECONDS)
                probe.connect(unquote(parts.path))
                return True
        with socket.create_connection((parts.hostname, parts.port or 6379), CONNECT_SECONDS):
            return True
    return False
