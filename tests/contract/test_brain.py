"""Our own Brain document against the running server: no 5xx, no undocumented status, conforming bodies.

That bad data is refused is held in tests/http.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dev import Stack, running

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
STREAMS = ("executorCommands", "executorRPC")
"""Answers that don't end; `events` is asked for as JSON."""
SECONDS = 300


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(env={"BYRE_WARM_SECONDS": "1"}) as stack:
        yield stack


def test_whatever_the_document_allows_and_what_it_does_not(stack: Stack, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "schemathesis.cli", "run", f"{stack.info['url']}/openapi/brain.json"]
    argv += ["-H", f"Authorization: Bearer {stack.info['management_token']}", "--checks", ",".join(CHECKS)]
    argv += ["--phases", "examples,coverage,fuzzing,stateful", "--mode", "all", "--max-examples", "5", "--seed", "1"]
    # more threads than one run into a fault of Python 3.11's ast module
    argv += ["--request-timeout", "20", "--workers", "1", "--warnings", "off", "--no-color"]
    argv += [part for name in STREAMS for part in ("--exclude-operation-id", name)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "Internal Server Error" not in stack.text()
    assert "Traceback" not in stack.text()
