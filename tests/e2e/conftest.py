"""A deployment of two API processes and two workers, once on a directory and once on a stand-in for S3."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.deployment import Deployment, deployment, moto_process

QUICK = {"BYRE_LEASE_SECONDS": "10", "BYRE_WARM_SECONDS": "2", "BYRE_DRAIN_SECONDS": "3"}


@pytest.fixture(scope="module", params=["directory", "s3"])
def it(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    failed = request.session.testsfailed
    with contextlib.ExitStack() as stack:
        s3 = stack.enter_context(moto_process()) if request.param == "s3" else {"store": None, "env": {}}
        made = stack.enter_context(deployment(apis=2, workers=2, store=s3["store"], env={**QUICK, **s3["env"]}))
        yield made
        if request.session.testsfailed > failed:
            made.show()
