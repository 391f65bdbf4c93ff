"""A private Redis for tests: the binary that the product would use, on a unix socket in a directory of its own, gone afterwards.

@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    with private_redis() as server:
        yield server
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from app import redis_server

START_SECONDS = 20.0


class PrivateRedis:
    """A server with an append-only file in `directory`. `start` and `stop` may be repeated; the data survives."""

    def __init__(self, directory: Path) -> None:
        self._server = redis_server.prepare(directory)
        self._process: subprocess.Popen[bytes] | None = None
        self.url = self._server.url

    def client(self) -> redis.Redis:
        """A client that repeats nothing by itself."""
        return redis.Redis.from_url(self.url, retry=Retry(NoBackoff(), 0), retry_on_error=[], socket_timeout=10, protocol=2)

    def start(self) -> None:
        """Starts it and waits until it answers."""
        self._process = subprocess.Popen(self._server.argv, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        until = time.monotonic() + START_SECONDS
        with self.client() as client:
            while True:
                try:
                    client.ping()
                    return
                except (redis.exceptions.RedisError, OSError):
                    if time.monotonic() > until or self._process.poll() is not None:
                        raise
                    time.sleep(0.01)

    def stop(self, *, kill: bool = False) -> None:
        """Ends it, cleanly unless `kill`."""
        if self._process:
            self._process.kill() if kill else self._process.terminate()
            self._process.wait(20)
            self._process = None


@contextmanager
def private_redis() -> Iterator[PrivateRedis]:
    """A running server for the time of the block."""
    with tempfile.TemporaryDirectory(prefix="byre-redis-") as directory:
        server = PrivateRedis(Path(directory))
        server.start()
        try:
            yield server
        finally:
            server.stop()
