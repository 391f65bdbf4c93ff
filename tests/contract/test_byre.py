"""Our own byre document against the running server: no 5xx, no undocumented status, conforming bodies.

Whoever runs this has a project with a task, a session with an answered turn and an open question, so that ids that the document's links
and examples lead to are there to be found.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.fuzz import fuzz
from tests.support.client import until
from tests.support.deployment import Deployment, deployment
from tests.support.people import QUICK, People, ask

EXCLUDED = ("streamEvents",)
"""An answer that doesn't end."""


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
    fuzz(f"{people.api.info['url']}/openapi/byre.json", people.boss, EXCLUDED, 4, tmp_path)
    said = "".join(process.text() for process in (*people.it.apis, *people.it.workers))
    assert "Internal Server Error" not in said
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:4000]
