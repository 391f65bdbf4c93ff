"""Tells whoever started this process that it is ready, the way systemd asks for (sd_notify(3)).

Rules: `byre dev` and `Type=notify` units listen on the address in NOTIFY_SOCKET; without one, and when nobody listens, nothing
happens. It is news, never a condition of going on.
"""

from __future__ import annotations

import contextlib
import secrets
import socket


def ready(address: str) -> None:
    """Sends READY=1 to `address`: a path, or `@name` for an abstract socket. Empty: does nothing."""
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out, contextlib.suppress(OSError):
        out.setblocking(False)
        out.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)


class Listener:
    """The other end: one abstract datagram socket for one child. `address` goes into its NOTIFY_SOCKET."""

    def __init__(self) -> None:
        self.address = "@byre-" + secrets.token_hex(12)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._socket.bind("\0" + self.address[1:])

    def told(self) -> bool:
        """Whether READY=1 has come since the last call. Never blocks."""
        told = False
        with contextlib.suppress(BlockingIOError):
            while True:
                told = b"READY=1" in self._socket.recv(4096).split(b"\n") or told
        return told

    def fileno(self) -> int:
        """For a selector."""
        return self._socket.fileno()

    def close(self) -> None:
        """Frees the address."""
        self._socket.close()
