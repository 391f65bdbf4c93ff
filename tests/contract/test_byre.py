"""Our own byre document against the running server: no 5xx, no undocumented status, conforming bodies.

Whoever runs this has a project with a task, a session with an answered turn and an open question, so that ids that the document's links
and examples lead to are there to be found.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client import until
from tests.support.deployment import Deployment, deployment
from tests.support.people import QUICK, People, ask

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
    "response_schema_conformance", "unsupported_method",
)  # fmt: skip
EXCLUDED = ("streamEvents",)
"""An answer that doesn't end."""
SECONDS = 300


@pytest.fixture(scope="module")
def it() -> Iterator[Deployment]:
    with deployment(env={**QUICK, "BYRE_OUTGOING_ALLOW": "127.0.0.1"}) as made:
        yield made


@pytest.fixture(scope="module")
def people(it: Deployment) -> People:
    made = People(it)
    task = made.project().task()
    session = made.work(task, "/write a.txt hello")
    made.say(session, ask("Which way?", "- ( ) left\n- ( ) right\n"))
    until("the question is there", lambda: made.inbox(task))
    return made


def test_whatever_the_document_allows_and_what_it_does_not(people: People, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "schemathesis.cli", "run", f"{people.api.info['url']}/openapi/byre.json"]
    argv += ["-H", f"Authorization: Bearer {people.boss}", "--checks", ",".join(CHECKS)]
    argv += ["--phases", "examples,coverage,fuzzing,stateful", "--mode", "all", "--max-examples", "4", "--seed", "1"]
    # more threads than one run into a fault of Python 3.11's ast module
    argv += ["--request-timeout", "30", "--workers", "1", "--warnings", "off", "--no-color"]
    argv += [part for name in EXCLUDED for part in ("--exclude-operation-id", name)]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS)
    shown = "\n".join(line[:300] for line in done.stdout.splitlines())
    assert done.returncode == 0, shown[-8000:] + done.stderr[-2000:]
    said = "".join(process.text() for process in (*people.it.apis, *people.it.workers))
    assert "Internal Server Error" not in said
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
