"""The server's end of one WebSocket, on the connection that the server gave the request: RFC 6455 by wsproto, without extensions.

Rules: one reader, any number of writers; a frame is written whole before the next one. What the client sends is read no faster than it is
taken, and a message has at most `limit` bytes. A client that answers no ping, or doesn't take what is sent for `SLOW_SECONDS`, is gone.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from typing import Any

from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Message, Ping, Pong, TextMessage
from wsproto.utilities import ProtocolError, RemoteProtocolError, generate_accept_token

from app.core.errors import Invalid

PING_SECONDS = 10.0
SLOW_SECONDS = 30.0
GOODBYE_SECONDS = 2.0
"""How long the other side's end of a closing handshake is waited for."""
TICK_SECONDS = 1.0
PIECE = 1 << 14
TOO_BIG, PROTOCOL_ERROR, NORMAL = 1009, 1002, 1000  # RFC 6455, section 7.4.1


class Closed(Exception):
    """The connection is over."""


class WebSocket:
    """Made from a WSGI environment, it answers the handshake with `subprotocol`. Raises Invalid, before anything is answered.

    Its owner reads until Closed and then lets go of the connection.
    """

    def __init__(self, env: dict[str, Any], subprotocol: str, limit: int) -> None:
        key = env.get("HTTP_SEC_WEBSOCKET_KEY", "")
        if env.get("HTTP_SEC_WEBSOCKET_VERSION") != "13" or not key or env.get("REQUEST_METHOD") != "GET":
            raise Invalid("this is no WebSocket handshake of version 13")
        self._sock: socket.socket = env["gunicorn.socket"]
        self._sock.settimeout(SLOW_SECONDS)
        self._limit = limit
        self._writing = threading.Lock()
        self._frames = Connection(ConnectionType.SERVER)
        self._parts: list[bytes] = []
        self._size = 0
        self._heard = time.monotonic()
        self._ping_at = self._heard + PING_SECONDS
        self._end_at = float("inf")
        accept = generate_accept_token(key.encode()).decode()
        self._sock.sendall(
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: {subprotocol}\r\n\r\n".encode()
        )

    def send(self, text: str) -> None:
        """Sends a message. Raises Closed."""
        self._send(Message(data=text))

    def close(self, code: int = NORMAL) -> None:
        """Begins to end it: what the client still sends is thrown away until it answers, for `GOODBYE_SECONDS`. Never raises."""
        self._end_at = min(self._end_at, time.monotonic() + GOODBYE_SECONDS)
        with contextlib.suppress(Closed):
            self._send(CloseConnection(code=code))

    def receive(self) -> bytes:
        """The next whole message, text or not. Raises Closed."""
        while True:
            try:
                for event in self._frames.events():
                    message = self._take(event)
                    if message is not None:
                        return message
                data = self._read()
                if not data:
                    raise Closed
                self._frames.receive_data(data)
            except RemoteProtocolError as error:
                hint = error.event_hint
                self.close(int(hint.code) if isinstance(hint, CloseConnection) else PROTOCOL_ERROR)
                self._drain()

    def _take(self, event: Event) -> bytes | None:
        """What an event of the protocol means; a message when it is complete."""
        if isinstance(event, Ping):
            self._send(event.response())
        elif isinstance(event, CloseConnection):
            if self._frames.state is ConnectionState.REMOTE_CLOSING:
                self._send(event.response())
            raise Closed
        elif isinstance(event, TextMessage | BytesMessage) and self._end_at == float("inf"):
            part = event.data.encode() if isinstance(event.data, str) else bytes(event.data)
            self._parts.append(part)
            self._size += len(part)
            if self._size > self._limit:
                self._parts.clear()
                self.close(TOO_BIG)
                self._drain()
            if event.message_finished:
                whole = b"".join(self._parts)
                self._parts, self._size = [], 0
                return whole
        elif not isinstance(event, Pong | TextMessage | BytesMessage):
            raise Closed
        return None

    def _read(self) -> bytes:
        """The next bytes; pings while there are none. Raises Closed."""
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        while not poll.poll(int(TICK_SECONDS * 1000)):
            now = time.monotonic()
            if now >= self._end_at or now >= self._heard + 2 * PING_SECONDS + TICK_SECONDS:
                raise Closed
            if now >= self._ping_at:
                self._ping_at = now + PING_SECONDS
                if self._end_at == float("inf"):
                    self._send(Ping())
        self._heard = time.monotonic()
        self._ping_at = max(self._ping_at, self._heard)
        if self._heard >= self._end_at:
            raise Closed
        try:
            return self._sock.recv(PIECE)
        except OSError:
            raise Closed from None

    def _drain(self) -> None:
        """After an end that is ours: reads on for a while, else what we said last could be lost with the connection. Raises Closed."""
        while self._read():
            pass
        raise Closed

    def _send(self, event: Event) -> None:
        try:
            with self._writing:
                self._sock.sendall(self._frames.send(event))
        except (OSError, ProtocolError):
            raise Closed from None
