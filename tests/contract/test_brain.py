"""Our own Brain document against the running server: no 5xx, no undocumented status, conforming bodies.

That bad data is refused is held in tests/http.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.fuzz import fuzz
from tests.support.dev import Stack, running

STREAMS = ("executorCommands", "executorRPC")
"""Answers that don't end; `events` is asked for as JSON."""


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(env={"BYRE_WARM_SECONDS": "1"}) as stack:
        yield stack


def test_whatever_the_document_allows_and_what_it_does_not(stack: Stack, tmp_path: Path) -> None:
    fuzz(f"{stack.info['url']}/openapi/brain.json", stack.info["management_token"], STREAMS, 5, tmp_path)
    assert "Internal Server Error" not in stack.text()
    assert "Traceback" not in stack.text()
