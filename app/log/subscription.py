"""One Redis connection in subscriber mode, shared by a whole process.

Rules: one thread reads; anyone may subscribe (commands are written under a lock, the socket is full duplex). A lost connection is
made again with back-off and jitter for as long as the process lives, and every channel is subscribed again. `subscribe` returns when
the server has confirmed, or at once while there is no connection: whoever missed something is told by `connected`.
"""

from __future__ import annotations

import random
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
        self._conn: Any = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self.connected = False

    def start(self, message: Callable[[str, bytes], None], idle: Callable[[], None], connected: Callable[[], None]) -> None:
        """Starts the reader: `message(channel, body)` for each one, `idle()` at each quiet interval, `connected()` after each connect."""
        self._message, self._idle, self._on_connected = message, idle, connected
        self._thread = threading.Thread(target=self._run, name="hub", daemon=True)
        self._thread.start()

    def subscribe(self, channel: str) -> None:
        """Subscribes to `channel` (once, however often it is asked for) and waits for the confirmation, bounded."""
        with self._lock:
            confirmed = self._channels.get(channel)
            if confirmed is None:
                confirmed = self._channels[channel] = threading.Event()
                self._send("SUBSCRIBE", channel)
        if self.connected and threading.current_thread() is not self._thread:
            confirmed.wait(CONFIRM_SECONDS)

    def unsubscribe(self, channel: str) -> None:
        """Ends the subscription to `channel`."""
        with self._lock:
            if self._channels.pop(channel, None):
                self._send("UNSUBSCRIBE", channel)

    def close(self) -> None:
        """Ends the connection and the reader."""
        self._closed.set()
        with self._lock:
            if self._conn:
                self._conn.disconnect()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(5)

    def _send(self, *command: str) -> None:
        if self._conn is None:
            return
        try:
            self._conn.send_command(*command, check_health=False)
        except (redis.exceptions.RedisError, OSError):
            # the reader meets the same broken connection, and subscribes again on the next one
            self._conn.disconnect()

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
            for confirmed in self._channels.values():
                confirmed.clear()
            if self._channels:
                conn.send_command("SUBSCRIBE", *self._channels, check_health=False)
        self.connected = True
        self._on_connected()

    def _read(self) -> None:
        conn = self._conn
        last = time.monotonic()
        while not self._closed.is_set():
            if not conn.can_read(timeout=PING_SECONDS):
                if time.monotonic() - last > 3 * PING_SECONDS:
                    raise redis.exceptions.ConnectionError("no answer to pings")
                with self._lock:
                    if self._channels:
                        conn.send_command("PING", check_health=False)
                    else:
                        last = time.monotonic()
                self._idle()
                continue
            reply = conn.read_response()
            last = time.monotonic()
            if not isinstance(reply, list) or len(reply) != 3:
                continue
            kind, channel, body = reply
            if kind == b"message":
                self._message(channel.decode(), body)
            elif kind == b"subscribe":
                confirmed = self._channels.get(channel.decode())
                if confirmed:
                    confirmed.set()
