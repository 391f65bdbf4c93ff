"""A deployment of several API processes for the tests of executors, one for each of their modules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployment import Api, Deployment, deployment


@pytest.fixture(scope="module")
def it() -> Iterator[Deployment]:
    with deployment(
        apis=2, workers=1, env={"BYRE_LEASE_SECONDS": "3", "BYRE_WARM_SECONDS": "2", "BYRE_WORKER_SLOTS": "16"}
    ) as made:
        yield made


@pytest.fixture
def api(it: Deployment) -> Api:
    return it.apis[0]
