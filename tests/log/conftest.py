"""A real Redis for the tests of the log, and logs over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.store.contract import Store
from app.store.directory import DirectoryStore
from app.store.memory import MemoryStore
from tests.log.bench import Bench
from tests.support.redis_server import PrivateRedis, private_redis


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    with private_redis() as server:
        yield server


@pytest.fixture(params=["memory", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else DirectoryStore(tmp_path / "store")


@pytest.fixture
def bench(server: PrivateRedis) -> Iterator[Callable[[Store], Bench]]:
    """Makes benches on the server; they are closed afterwards."""
    made: list[Bench] = []

    def make(store: Store) -> Bench:
        made.append(Bench(server, store))
        return made[-1]

    yield make
    for each in made:
        each.close()
