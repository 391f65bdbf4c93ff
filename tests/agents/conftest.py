"""What the tests with real agents share: a stand-in for the vendor's API, and a `byre dev` whose agents speak to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dev import Stack, running
from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import NotHere, NotInstalled, command, required

KEY = "sk-of-the-deployment-0123456789"
ACP_KEY = "sk-of-acp-0123456789"
AGENT = Path(__file__).resolve().parents[1] / "support" / "acp_agent.py"


@pytest.fixture(scope="session")
def api() -> Iterator[MessagesApi]:
    with MessagesApi() as api:
        yield api


@pytest.fixture(scope="session")
def stack(api: MessagesApi) -> Iterator[Stack]:
    """Two workers and two API processes that offer every harness. One for all tests: a start costs ten seconds.

    `scripted` and `forgetful` are ACP agents of the tests, `real` is the one from npm, if it can be installed.
    """
    claude = _or_none("claude")
    real = _or_none("acp") if claude else None
    agents = {"scripted": f"{sys.executable} {AGENT}", "forgetful": f"{sys.executable} {AGENT} no-load"}
    acp = {
        "ANTHROPIC_BASE_URL": api.url,
        "ANTHROPIC_API_KEY": ACP_KEY,
        "DISABLE_TELEMETRY": "1",
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    if real:
        agents["real"] = real
        acp["CLAUDE_CODE_EXECUTABLE"] = str(claude)
    env = {
        "BYRE_HARNESSES": ",".join(["claude", "script", *agents]),
        "BYRE_VENDOR": "claude",
        "BYRE_CLAUDE_COMMAND": claude or "claude",
        "BYRE_CLAUDE_ENV": f"ANTHROPIC_BASE_URL={api.url};CLAUDE_CODE_MAX_RETRIES=1",
        "BYRE_ANTHROPIC_API_KEY": KEY,
        "BYRE_ACP_AGENTS": "; ".join(f"{name}={command}" for name, command in agents.items()),
        "BYRE_ACP_ENV": ";".join(f"{name}={value}" for name, value in acp.items()),
        "BYRE_API_PROCESSES": "2",
        "BYRE_LEASE_SECONDS": "3",
        "BYRE_WARM_SECONDS": "10",
        "BYRE_STUCK_AFTER_SECONDS": "1",
        "BYRE_TURN_TOKENS": "400",
        "BYRE_TURN_COST_USD": "1",
    }
    with running(workers=2, env=env) as stack:
        yield stack


@pytest.fixture
def claude() -> str:
    """The CLI. A test that asks for it is skipped where it can't be installed."""
    return required("claude")


def _or_none(name: str) -> str | None:
    try:
        return command(name)
    except (NotHere, NotInstalled):
        return None  # the tests that need it say why they are skipped
