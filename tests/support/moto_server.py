"""A stand-in for S3 on a free loopback port: moto, served from a thread of this process.

Moto looks at a condition and then stores, in as many threads as there are requests: two writers could both win. Real S3 does
not do that, so each request here runs alone.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from app.store.s3 import S3Store, connect

ACCESS_KEY = "test-access-key"
SECRET_KEY = "test-secret-key"


class _Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log(self, type: str, message: str, *args: Any) -> None:
        return


class MotoServer:
    """A running server. `endpoint` is its URL; `bucket()` makes buckets, `store()` stores in them."""

    def __init__(self) -> None:
        app = DomainDispatcherApplication(create_backend_app)
        alone = threading.Lock()
        self.requests = 0
        self.busy = False
        """Whether every request is answered with SlowDown."""
        self.delay = 0.0
        """Seconds that every request takes longer."""

        def one_at_a_time(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            if self.busy:
                environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
                start_response("503 Slow Down", [("Content-Type", "application/xml")])
                return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]
            time.sleep(self.delay)
            with alone:
                self.requests += 1
                return [b"".join(app(environ, start_response))]

        self._server = make_server("127.0.0.1", 0, one_at_a_time, threaded=True, request_handler=_Quiet)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, name="moto", daemon=True)
        self._thread.start()
        self._client = self.client()

    def client(self, **options: Any) -> Any:
        """A client with the product's settings, and `options` of `connect`."""
        return connect(endpoint=self.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY, **options)

    def bucket(self) -> str:
        """The name of a new, empty bucket."""
        name = f"bucket-{secrets.token_hex(4)}"  # every server of a process has the same buckets
        self._client.create_bucket(Bucket=name)
        return name

    def store(self, bucket: str | None = None, prefix: str = "") -> S3Store:
        """A store in `bucket`, or in a new one; they share one client."""
        return S3Store(self._client, bucket or self.bucket(), prefix)

    def stop(self) -> None:
        self._client.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)


@contextmanager
def moto_server() -> Iterator[MotoServer]:
    """A server for the time of the block."""
    server = MotoServer()
    try:
        yield server
    finally:
        server.stop()
