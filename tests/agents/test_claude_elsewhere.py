"""The real CLI in a deployment of several machines: a tool's call crosses processes, and another worker, on another disk, goes on."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.reading import descendants, environments, kinds, results, texts
from tests.support.client import until
from tests.support.deployment import Deployment, Worker, deployment
from tests.support.executor import TOOL, executor
from tests.support.leaks import leaks
from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import required

KEY = "sk-of-elsewhere-0123456789"
STORE_KEY = "key-of-the-store-0123456789"
KNOWN = {
    "PATH", "HOME", "LANG", "CLAUDE_CONFIG_DIR", "IS_SANDBOX", "MCP_TOOL_TIMEOUT", "ENABLE_TOOL_SEARCH", "BYRE_BRIDGE", "BYRE_MARKER",
    "PWD", "OLDPWD", "SHLVL", "_",
}  # fmt: skip
VENDOR = ("CLAUDE", "ANTHROPIC_", "DISABLE_", "COREPACK_", "NoDefault", "GIT_", "AI_AGENT", "TMP")
"""How variables begin that the CLI knows, or gives to its own children."""


@pytest.fixture(scope="module")
def it(api: MessagesApi) -> Iterator[Deployment]:
    env = {
        "BYRE_HARNESSES": "claude",
        "BYRE_CLAUDE_COMMAND": required("claude"),
        "BYRE_CLAUDE_ENV": f"ANTHROPIC_BASE_URL={api.url}",
        "BYRE_ANTHROPIC_API_KEY": KEY,
        "BYRE_LEASE_SECONDS": "3",
        "BYRE_LOG_LEVEL": "debug",
        "AWS_SECRET_ACCESS_KEY": STORE_KEY,
    }
    with deployment(apis=2, workers=1, env=env) as made:
        yield made


def test_a_tool_in_another_process_and_a_takeover_with_the_cli_s_own_memory(it: Deployment) -> None:
    here, there = it.apis
    with executor(there.info) as found:
        one = here.session("claude", model="m", bindings=[{"alias": "calc", "executor": found, "runtime": [TOOL]}])
        assert "mcp__byre__calc_add" in texts(here.turn(one, "@tools"))[0].split(), "seen without searching"
        events = here.turn(one, '@tool mcp__byre__calc_add {"a": 2, "b": 40}\nsummed')
        wanted = ["turn.started", "tool.call", "tool.progress", "tool.result", "assistant.message", "turn.completed"]
        assert kinds(events) == wanted, "the call is recorded once, by the bridge"
        assert events[1]["data"]["name"] == "calc_add" and events[1]["data"]["arguments"] == {"a": 2, "b": 40}
        assert results(events) == ["42"]

        first = it.workers[0]
        it.workers.append(second := Worker({**it.env, "BYRE_WORKSPACES": str(it.data / "another")}, it.data / "worker-1.log"))
        second.start()
        first.end(signal.SIGKILL)
        until("no process of it is left", lambda: not descendants(one), seconds=10)
        after = here.turn(one, '@tool mcp__byre__calc_add {"a": 1, "b": 1}\n@recall')
    assert after[0]["data"]["epoch"] > events[0]["data"]["epoch"]
    assert results(after) == ["2"]
    said = texts(after)[0].splitlines()
    assert (said[0], said[1].split()[0], said[-1].split()[0]) == ("@tools", "@tool", "@tool")
    assert list(Path(it.data / "another").glob(f"sessions/*/{one}"))


def test_a_key_is_in_the_agent_s_environment_and_nowhere_else(it: Deployment, api: MessagesApi) -> None:
    here = it.apis[0]
    one = here.session("claude", model="m")
    shell = json.dumps({"command": "env; env > leak.txt; cat leak.txt", "description": "x"})
    events = here.turn(one, f"I look.\n@tool Bash {shell}\n@key")
    assert kinds(events)[-1] == "turn.completed"
    assert "ANTHROPIC_API_KEY=[secret]" in results(events)[0]
    assert texts(events) == ["I look.", "[secret]"]
    assert any(asked.key == KEY for asked in api.asked), "the agent has it"
    assert here.call("POST", f"/sessions/{one}/flush").status == 200
    found = environments(one)
    assert found, "its processes run"
    for variables in found:
        strange = [name for name in variables if name not in KNOWN and not name.startswith(VENDOR)]
        assert strange == []
        values = " ".join(variables.values())
        assert not [secret for secret in (it.env["BYRE_SECRET_KEY"], STORE_KEY, it.token, it.redis.url) if secret in values]
    with it.redis.client() as redis:
        besides = [it.data / "workspaces", it.data / "another"]  # what the agent itself has on its disk
        assert leaks([KEY, STORE_KEY, it.token, it.env["BYRE_SECRET_KEY"]], [it.data], redis, besides=besides) == []
