"""What the tests with real agents share: a stand-in for the vendor's API, and a `byre dev` whose agents speak to it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dev import Stack, running
from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import required

KEY = "sk-of-the-deployment-0123456789"


@pytest.fixture(scope="session")
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as api:
        yield api


@pytest.fixture(scope="session")
def claude_stack(api: MessagesApi) -> Iterator[Stack]:
    """Two workers and two API processes that run the real Claude Code CLI. One for all tests: a start costs ten seconds."""
    env = {
        "BYRE_HARNESSES": "claude",
        "BYRE_CLAUDE_COMMAND": str(required("claude")),
        "BYRE_CLAUDE_ENV": f"ANTHROPIC_BASE_URL={api.url};CLAUDE_CODE_MAX_RETRIES=1",
        "BYRE_ANTHROPIC_API_KEY": KEY,
        "BYRE_API_PROCESSES": "2",
        "BYRE_LEASE_SECONDS": "3",
        "BYRE_STUCK_AFTER_SECONDS": "1",
        "BYRE_TURN_TOKENS": "400",
    }
    with running(workers=2, env=env) as stack:
        yield stack


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything in this folder starts real agent programs, which takes minutes."""
    for item in items:
        if item.path.parent.name == "agents":
            item.add_marker(pytest.mark.agents)
