"""The application over fakes, as the test server loads it: `tests.http.serving:create()`.

`/_control` lets the test process, which has no other way in, look at the fakes and change them.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import falcon
import orjson

from app.http.app import App, create_app
from app.http.deps import Limits
from app.services.blobs import Blobs
from app.services.writer import Clock
from app.store.memory import MemoryStore
from tests.http.fakes import FakeSessions, FakeTokens, make_deps


class Control:
    """`GET` tells the state; `POST {"do": ...}` changes it."""

    def __init__(self, sessions: FakeSessions, tokens: FakeTokens) -> None:
        self._sessions = sessions
        self._tokens = tokens

    def on_get(self, req: Any, resp: falcon.Response) -> None:
        streams = self._sessions.streams
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        resp.data = orjson.dumps(
            {
                "pid": os.getpid(),
                "calls": len(self._sessions.calls),
                "streams": len(streams),
                "open": sum(1 for stream in streams if not stream.closed),
                "closed": [stream.closed for stream in streams[:100]],
                "rss": pages * resource.getpagesize(),
                "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            }
        )

    def on_post(self, req: Any, resp: falcon.Response) -> None:
        order = orjson.loads(req.stream.read())
        if order["do"] == "revoke":
            self._tokens.revoke(order["token"])
        elif order["do"] == "push":
            for stream in self._sessions.streams:
                stream.push(order["data"].encode() * order.get("times", 1))
        elif order["do"] == "end":
            for stream in self._sessions.streams:
                stream.end()
        elif order["do"] == "sleep":
            import time

            time.sleep(order["seconds"])
        resp.data = b"{}"


def create() -> App:
    """One server process of the tests. Bounds are given by environment variables of the test."""
    sessions, tokens = FakeSessions(), FakeTokens()
    limits = Limits(
        heartbeat=float(os.environ.get("TEST_HEARTBEAT", "10")),
        slow=float(os.environ.get("TEST_SLOW_SECONDS", "30")),
        max_streams=int(os.environ.get("TEST_MAX_STREAMS", "10000")),
        max_streams_per_token=int(os.environ.get("TEST_MAX_STREAMS_PER_TOKEN", "10000")),
    )
    byre = SimpleNamespace(blobs=Blobs(MemoryStore(), Clock()))
    app = create_app(make_deps(sessions=sessions, tokens=tokens, limits=limits, byre=byre))
    app.add_route("/_control", Control(sessions, tokens))
    return app
