"""The gunicorn worker class: a stop that is quick and loses no request, over what `app/http/worker.py` does for each request.

Rules: when it is told to stop it closes its listening sockets at once, ends live streams (they tell their clients to come
back), closes connections on which no request is under way, lets the requests under way finish, and goes. A client therefore
sees either an answer or a connection that ended before its request was read.
"""

from __future__ import annotations

import contextlib
import os
import socket
from functools import partial
from typing import Any

import gevent
from gevent.pool import Pool
from gevent.server import StreamServer
from gevent.socket import wait_read

from app.http.worker import RequestWorker

TICK = 1.0
"""Seconds between signs of life to the gunicorn master, which replaces a worker that gives none."""
GRACE = 2.5
"""Seconds that requests under way get after a stop, under `graceful_timeout` of the master."""


class Worker(RequestWorker):
    """One server process of the API."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting: set[Any] = set()

    def run(self) -> None:
        """Serves until told to stop. Returns when all connections have ended, or `GRACE` has passed."""
        connections = Pool(self.worker_connections)
        servers = [StreamServer(sock, handle=partial(self.handle, sock), spawn=connections) for sock in self.sockets]
        for server in servers:
            if self.cfg.workers > 1:
                server.max_accept = 1  # else one process takes a whole burst and the others idle
            server.start()
        while self.alive:
            self.notify()
            self._pause()
        for server in servers:
            server.close()
        self.wsgi.drain.begin()
        for client in list(self._waiting):
            with contextlib.suppress(OSError):
                # What has arrived is still read and answered. Not gevent's own shutdown: it fails whoever waits to read.
                client._sock.shutdown(socket.SHUT_RD)
        with gevent.Timeout(GRACE, False):
            while not connections.join(timeout=TICK):
                self.notify()
        if len(connections):
            self.log.warning("%d connections were cut at the end of the grace period", len(connections))
            connections.kill(timeout=0.3)

    def handle(self, listener: Any, client: Any, addr: Any) -> None:
        """One connection, for as long as it is kept alive."""
        self._waiting.add(client)
        try:
            super().handle(listener, client, addr)
        finally:
            self._waiting.discard(client)

    def handle_request(self, listener_name: Any, req: Any, sock: Any, addr: Any) -> None:
        """One request of a connection."""
        self._waiting.discard(sock)
        super().handle_request(listener_name, req, sock, addr)
        if not self.alive:
            raise StopIteration  # gunicorn's way to say that this connection is done
        self._waiting.add(sock)

    def _pause(self) -> None:
        """Waits a tick, or until a signal has come: signals write to this pipe, else a stop would wait for the tick."""
        with contextlib.suppress(TimeoutError):
            wait_read(self.PIPE[0], timeout=TICK)
            with contextlib.suppress(BlockingIOError):
                os.read(self.PIPE[0], 4096)
