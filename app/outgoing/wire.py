"""A connection with one deadline for all of it, whatever the other side does in between.

Rules: the socket never blocks; every wait is ours, cut into slices of `SLICE_SECONDS`, after each of which the deadline and `stopped` are
asked, so a request ends in time also when bytes trickle in, in the middle of a TLS record too. What is read is counted, so that headers,
frames of chunks and trailers can't go on for ever. Works with threads and with gevent, which makes `select.poll` its own.
"""

from __future__ import annotations

import contextlib
import errno
import io
import select
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from app.outgoing.errors import Lost, NotSent, OutgoingError, TooMuch

SLICE_SECONDS = 0.25
PIECE = 1 << 16
MOST_ADDRESSES = 4
"""Addresses of one host that are tried."""
_OTHER_HOST = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH (openssl/x509_vfy.h): their text names the host
Address = tuple[Any, ...]


class Deadline:
    """When a request has to be over. `stopped` is asked now and then: true means at once."""

    def __init__(self, seconds: float, stopped: Callable[[], bool] = lambda: False) -> None:
        self._until = time.monotonic() + seconds
        self._stopped = stopped

    def left(self) -> float:
        """Seconds that are left, 0 when it is over."""
        return 0.0 if self._stopped() else max(0.0, self._until - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """The same, but over in `seconds` at the latest."""
        return Deadline(min(self.left(), seconds), self._stopped)

    def why(self) -> str:
        """What to say of a request that it ended."""
        return "it was told to stop" if self._stopped() else "there was no answer in time"

    def wait(self, sock: socket.socket, event: int, over: type[OutgoingError]) -> None:
        """Waits until `sock` is ready for `event`. Raises `over` when the time is."""
        poll = select.poll()
        poll.register(sock, event)
        while True:
            left = self.left()
            if not left:
                raise over(self.why())
            if poll.poll(max(1, int(min(left, SLICE_SECONDS) * 1000))):
                return


class Wire:
    """One connection. To `http.client` it is a socket: it sends, and `makefile` reads. `allowance` is how much may still be read.

    `hang_up` ends it; `close` is what `http.client` says when it only wants to go on reading.
    """

    def __init__(self, sock: socket.socket, deadline: Deadline, allowance: int) -> None:
        self._sock = sock
        self._deadline = deadline
        self.allowance = allowance
        self.sent = False

    def sendall(self, data: Any) -> None:
        """Raises Lost."""
        self.sent = True
        rest = memoryview(data)
        while rest:
            rest = rest[self._step(self._sock.send, select.POLLOUT, rest[:PIECE]) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        """A reader, buffered."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """Does nothing."""

    def receive(self, buffer: Any) -> int:
        """Fills `buffer` with what has come, at least a byte unless the other side has ended. Raises Lost, TooMuch."""
        if self.allowance <= 0:
            raise TooMuch("the answer is too large")
        count = self._step(self._sock.recv_into, select.POLLIN, buffer)
        self.allowance -= count
        return count

    def hang_up(self) -> None:
        """Ends the connection, whatever is still under way on it."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _step(self, do: Callable[[Any], int], event: int, data: Any) -> int:
        while True:
            if not self._deadline.left():
                raise Lost(self._deadline.why())
            try:
                return do(data)
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            except BlockingIOError:
                pass
            except OSError:
                raise Lost("the connection broke off") from None
            self._deadline.wait(self._sock, event, Lost)


class _Reader(io.RawIOBase):
    """A wire as a raw file."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._wire.receive(buffer)


def dial(addresses: list[tuple[int, Address]], deadline: Deadline, seconds: float) -> socket.socket:
    """A connection to the first of `addresses` (family, address) that takes one; `seconds` for each. Raises NotSent."""
    why: NotSent | None = None
    for family, address in addresses[:MOST_ADDRESSES]:
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            code = sock.connect_ex(address)
            if code == errno.EINPROGRESS:
                deadline.within(seconds).wait(sock, select.POLLOUT, NotSent)
                code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise NotSent("it doesn't take connections")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except NotSent as error:
            sock.close()
            why = error
        except BaseException:
            sock.close()
            raise
    raise why or NotSent("it doesn't take connections")


def secure(sock: socket.socket, tls: ssl.SSLContext, host: str, deadline: Deadline) -> socket.socket:
    """`sock` with TLS, the certificate being one for `host`. Closes `sock` when that fails. Raises NotSent."""
    try:
        wrapped = tls.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
    except (OSError, ValueError):
        sock.close()
        raise NotSent("TLS can't be agreed on") from None
    try:
        while True:
            try:
                wrapped.do_handshake()
                return wrapped
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            deadline.wait(wrapped, event, NotSent)
    except ssl.SSLCertVerificationError as error:
        wrapped.close()
        why = "it is for another host" if error.verify_code in _OTHER_HOST else error.verify_message.rstrip(".")
        raise NotSent(f"its certificate isn't good: {why}") from None
    except OSError:
        wrapped.close()
        raise NotSent("TLS can't be agreed on") from None
    except BaseException:
        wrapped.close()
        raise
