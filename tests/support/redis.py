"""A private Redis for a test: the server that `byre dev` uses, on a socket in a directory of its own, gone afterwards."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from app import redis_server
from app.dev_probe import redis_accepts
from tests.support.dev import until


@contextlib.contextmanager
def private_redis() -> Iterator[str]:
    """Starts one and yields its address."""
    directory = Path(tempfile.mkdtemp(prefix="byre-r-"))
    server = redis_server.prepare(directory)
    process = subprocess.Popen(server.argv, stdout=subprocess.DEVNULL)
    try:
        until("Redis takes connections", lambda: redis_accepts(server.url), pause=0.01)
        yield server.url
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory, ignore_errors=True)
        for path in server.cleanup:
            with contextlib.suppress(OSError):
                path.rmdir() if path.is_dir() else path.unlink()
