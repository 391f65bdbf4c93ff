"""Stores to test with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.store.contract import Store
from app.store.directory import DirectoryStore
from app.store.memory import MemoryStore
from tests.support.moto_server import MotoServer, moto_server


@pytest.fixture(scope="session")
def moto() -> Iterator[MotoServer]:
    with moto_server() as server:
        yield server


@pytest.fixture(params=["directory", "memory", "s3", "s3 below a prefix"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Each kind of store, empty."""
    made: Store
    match request.param:
        case "directory":
            made = DirectoryStore(tmp_path / "store")
        case "memory":
            made = MemoryStore()
        case _:
            server: MotoServer = request.getfixturevalue("moto")
            made = server.store(prefix="deep/down" if "prefix" in request.param else "")
    return made
