"""An application over fakes, and a real server over the same fakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from falcon import testing

from app.http.app import create_app
from tests.http.fakes import FakeClock, FakeSessions, FakeTokens, make_deps, real_schema
from tests.http.server import Server


class Tier:
    """The application with handles on its fakes. `call` is one request with the management token unless told otherwise."""

    def __init__(self, **changes: Any) -> None:
        self.sessions = FakeSessions()
        self.tokens = FakeTokens()
        self.clock = FakeClock()
        self.deps = make_deps(**{"sessions": self.sessions, "tokens": self.tokens, "monotonic": self.clock, **changes})
        self.app = create_app(self.deps)
        self.client = testing.TestClient(self.app)

    def call(
        self, method: str, path: str, json: Any = None, *, token: str | None = "management", **more: Any
    ) -> testing.Result:
        headers = dict(more.pop("headers", {}))
        if token:
            headers.setdefault("Authorization", f"Bearer {token}")
        return self.client.simulate_request(method, path, json=json, headers=headers, **more)


@pytest.fixture
def tier() -> Tier:
    return Tier()


@pytest.fixture(scope="session")
def validator() -> Any:
    return real_schema()


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Starts servers (with environment variables of `serving.py`) and stops them after the test."""
    started: list[Server] = []

    def start(**env: str) -> Server:
        started.append(Server(tmp_path / f"server-{len(started)}.log", **env))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of a module that leave it as it was."""
    running = Server(tmp_path_factory.mktemp("server") / "server.log")
    yield running
    running.stop()
