from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.redis_server import PrivateRedis, private_redis


@pytest.fixture(scope="session")
def server() -> Iterator[PrivateRedis]:
    with private_redis() as running:
        yield running
