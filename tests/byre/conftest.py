"""A deployment with people and projects, for all tests that have no need of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment, deployment
from tests.support.people import QUICK, People


@pytest.fixture(scope="session")
def it(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    failed = request.session.testsfailed
    with deployment(apis=1, workers=1, env=QUICK) as made:
        yield made
        if request.session.testsfailed > failed:
            made.show()


@pytest.fixture(scope="session")
def people(it: Deployment) -> People:
    return People(it)
