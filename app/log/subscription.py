"""One Redis connection in subscriber mode, shared by a whole process.

Rules: one thread reads; anyone may subscribe (commands are written under a lock, the socket is full duplex). A lost connection is
made again with back-off and jitter for as long as the process lives, and every channel is subscribed again. `confirmed` returns when
the server has confirmed, or at once while there is no connection: whoever missed something is told by `connected`.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import structlog

PING_SECONDS = 5.0
CONFIRM_SECONDS = 2.0
LONGEST_WAIT = 2.0

logger = structlog.get_logger(__name__)


class Subscription:
    """`connect` makes a fresh redis-py `Connection` (not yet connected)."""

    def __init__(self, connect: Callable[[], Any]) -> None:
        self._connect = connect
        self._lock = threading.Lock()
        self._channels: dict[str, threading.Event] = {}
        self._missing: set[str] | None = None
        self._conn: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.connected = False

    def start(self, message: Callable[[str, bytes], None], beat: Callable[[], None], connected: Callable[[], None]) -> None:
        """Starts the reader, which makes all calls: `message(channel, body)` for each one, `beat()` every `PING_SECONDS` or so,
        `connected()` after each connect, once every channel is confirmed."""
        self._message, self._beat, self._on_connected = message, beat, connected
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()

    def subscribe(self, channel: str) -> threading.Event:
        """Subscribes to `channel`, once, however often it is asked for. Never waits; gives what `confirmed` waits for."""
        with self._lock:
            event = self._channels.get(channel)
            if event is None:
                event = self._channels[channel] = threading.Event()
                self._send("SUBSCRIBE", channel)
            return event

    def confirmed(self, event: threading.Event) -> None:
        """Waits, a bounded time, until the server has confirmed a subscription."""
        if self.connected and threading.current_thread() is not self._thread:
            event.wait(CONFIRM_SECONDS)

    def unsubscribe(self, channel: str) -> None:
        """Ends the subscription to `channel`."""
        with self._lock:
            if self._channels.pop(channel, None):
                self._send("UNSUBSCRIBE", channel)
                if self._missing:
                    self._missing.discard(channel)

    def close(self) -> None:
        """Ends the connection and the reader."""
        self._closed.set()
        with self._lock:
            self._shut()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _shut(self) -> None:
        """Makes the reader see the end of the connection, which is then its own to close: not under the hands of a poll."""
        sock = getattr(self._conn, "_sock", None)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def _send(self, *command: str) -> None:
        if self._conn is None:
            return
        try:
            self._conn.send_command(*command, check_health=False)
        except (redis.exceptions.RedisError, OSError):
            # the reader meets the same broken connection, and subscribes again on the next one
            self._shut()

    def _run(self) -> None:
        wait = 0.05
        while not self._closed.is_set():
            try:
                self._open()
                wait = 0.05
                self._read()
            except (redis.exceptions.RedisError, OSError, ValueError, AttributeError) as e:
                if not self._closed.is_set():
                    logger.warning("live connection to Redis lost", error=str(e)[:200])
            except Exception:
                logger.exception("the hub failed on a message")
            self.connected = False
            with self._lock:
                if self._conn:
                    self._conn.disconnect()
                self._conn = None
            self._closed.wait(wait * (1 + random.random()))  # noqa: S311
            wait = min(wait * 2, LONGEST_WAIT)

    def _open(self) -> None:
        conn = self._connect()
        conn.connect()
        with self._lock:
            self._conn = conn
            self._missing = set(self._channels)
            for confirmed in self._channels.values():
                confirmed.clear()
            if self._channels:
                conn.send_command("SUBSCRIBE", *self._channels, check_health=False)
        self.connected = True
        self._told()

    def _read(self) -> None:
        conn = self._conn
        heard = beat = time.monotonic()
        while not self._closed.is_set():
            readable = conn.can_read(timeout=PING_SECONDS)
            now = time.monotonic()
            if now - beat >= PING_SECONDS:
                beat = now
                self._told()
                self._beat()
            if readable:
                self._take(conn.read_response())
                heard = time.monotonic()
                continue
            if now - heard > 3 * PING_SECONDS:
                raise redis.exceptions.ConnectionError("no answer to pings")
            with self._lock:
                if self._channels:
                    conn.send_command("PING", check_health=False)
                else:
                    heard = now

    def _take(self, reply: Any) -> None:
        if not isinstance(reply, list) or len(reply) != 3:
            return
        kind, channel, body = reply[0], reply[1].decode() if reply[1] else "", reply[2]
        if kind == b"message":
            self._message(channel, body)
        elif kind == b"subscribe":
            with self._lock:
                confirmed = self._channels.get(channel)
                if confirmed:
                    confirmed.set()
                if self._missing:
                    self._missing.discard(channel)
            self._told()

    def _told(self) -> None:
        """Calls `connected` once for a connection, when nothing that is published from now on can be missed."""
        with self._lock:
            due = self._missing is not None and not self._missing
            if due:
                self._missing = None
        if due:
            self._on_connected()
