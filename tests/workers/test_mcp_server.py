"""The MCP server of the tool bridge: by its own lines, and as the `mcp` package's client sees it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workers.bridge.server import BridgeServer
from workers.harness.claude_command import MCP_SERVER

TEXT = [{"type": "text", "text": "hello"}]


class Tools:
    """A worker's end: tools that answer, report, wait, or say a lot."""

    def __init__(self) -> None:
        self.waiting, self.cancelled, self.release = threading.Event(), threading.Event(), threading.Event()

    def descriptors(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
        return [
            {"name": "calc_add", "description": "adds", "input_schema": schema, "output_schema": {"type": "object"}},
            {"name": "any", "description": "", "input_schema": True},
        ]

    def call(self, name: str, arguments: Any, progress: Callable[[Any], None], cancelled: threading.Event) -> dict[str, Any]:
        if name == "wait":
            self.waiting.set()
            while not (self.release.is_set() or cancelled.wait(0.01)):
                pass
            if cancelled.is_set():
                self.cancelled.set()
        if name == "report":
            progress({"progress": 40, "total": 100, "message": "nearly"})
            progress("half")
            progress([1])
        if name == "fail":
            return {"content": TEXT, "is_error": True}
        if name == "parts":
            image = {"type": "image", "data": "aGk=", "mime_type": "image/png"}
            return {"content": [*TEXT, image, {"type": "odd", "text": "x"}], "structured_content": {"n": 1}}
        return {"content": [{"type": "text", "text": f"{name} {json.dumps(arguments)}"}]}


class Agent:
    """The other side of the pipes, as an agent program is."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(MCP_SERVER)],
            env={"BYRE_BRIDGE": str(path)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/",
        )  # fmt: skip

    def say(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin
        line = message if isinstance(message, bytes) else json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        self.process.stdin.write(line)
        self.process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout
        return dict(json.loads(self.process.stdout.readline()))

    def ask(self, method: str, params: dict[str, Any] | None = None, number: int = 7) -> dict[str, Any]:
        self.say({"id": number, "method": method, "params": params or {}})
        return self.hear()


@pytest.fixture
def tools() -> Tools:
    return Tools()


@pytest.fixture
def bridge(tools: Tools) -> Iterator[BridgeServer]:
    server = BridgeServer(tools)
    yield server
    tools.release.set()
    server.close()


@pytest.fixture
def agent(bridge: BridgeServer) -> Iterator[Agent]:
    made = Agent(bridge.path)
    yield made
    made.process.kill()
    made.process.wait(5)
    for pipe in (made.process.stdin, made.process.stdout):
        if pipe:
            pipe.close()


def test_handshake_list_and_unknown_methods(agent: Agent) -> None:
    assert agent.ask("initialize", {"protocolVersion": "2025-03-26"})["result"]["protocolVersion"] == "2025-03-26"
    assert agent.ask("initialize", {"protocolVersion": "1999-01-01"})["result"]["protocolVersion"] == "2025-11-25"
    agent.say({"method": "notifications/initialized"})
    assert agent.ask("ping") == {"jsonrpc": "2.0", "id": 7, "result": {}}
    add, other = agent.ask("tools/list")["result"]["tools"]
    assert add == {
        "name": "calc_add", "description": "adds", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
    }  # fmt: skip
    assert other == {"name": "any", "inputSchema": {"type": "object"}}
    assert agent.ask("resources/list")["error"]["code"] == -32601
    agent.say(b"not json\n")
    assert agent.hear()["error"]["code"] == -32700
    agent.say(b"[1]\n")
    assert agent.ask("tools/call", {"name": 5})["error"]["code"] == -32602


def test_results_progress_and_errors(agent: Agent) -> None:
    text = agent.ask("tools/call", {"name": "calc_add", "arguments": {"a": 1}})["result"]
    assert text == {"content": [{"type": "text", "text": 'calc_add {"a": 1}'}]}
    assert agent.ask("tools/call", {"name": "fail"})["result"] == {"content": TEXT, "isError": True}
    parts = agent.ask("tools/call", {"name": "parts"})["result"]
    assert parts["content"][1] == {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    assert json.loads(parts["content"][2]["text"]) == {"type": "odd", "text": "x"}
    assert parts["structuredContent"] == {"n": 1}
    told = [agent.ask("tools/call", {"name": "report", "_meta": {"progressToken": "t"}})["params"]]
    told += [agent.hear()["params"] for _ in range(2)]
    assert told == [
        {"progressToken": "t", "progress": 40, "total": 100, "message": "nearly"},
        {"progressToken": "t", "progress": 2, "message": "half"},
        {"progressToken": "t", "progress": 3, "message": "[1]"},
    ]
    assert "result" in agent.hear()
    assert "result" in agent.ask("tools/call", {"name": "report"})  # nobody asked for progress


def test_a_cancelled_call_ends_at_the_worker_and_is_not_answered(agent: Agent, tools: Tools) -> None:
    agent.say({"id": "w", "method": "tools/call", "params": {"name": "wait"}})
    assert tools.waiting.wait(10)
    assert agent.ask("ping")["result"] == {}  # others go on meanwhile
    agent.say({"method": "notifications/cancelled", "params": {"requestId": "w"}})
    assert tools.cancelled.wait(10)
    agent.say({"method": "notifications/cancelled", "params": {"requestId": "never"}})
    assert agent.ask("ping", number=8)["id"] == 8


def test_it_ends_with_its_input_and_takes_its_calls_along(agent: Agent, tools: Tools) -> None:
    agent.say({"id": 1, "method": "tools/call", "params": {"name": "wait"}})
    assert tools.waiting.wait(10)
    assert agent.process.stdin
    agent.process.stdin.close()
    assert agent.process.wait(10) == 0
    assert tools.cancelled.wait(10)


def test_a_worker_that_is_gone_is_a_result_that_says_so(agent: Agent, bridge: BridgeServer, tools: Tools) -> None:
    agent.say({"id": 1, "method": "tools/call", "params": {"name": "wait"}})
    assert tools.waiting.wait(10)
    bridge.close()
    lost = agent.hear()["result"]
    assert lost["isError"] and "outcome is unknown" in lost["content"][0]["text"]
    never = agent.ask("tools/call", {"name": "calc_add"})["result"]
    assert never["isError"] and "was not made" in never["content"][0]["text"]
    assert agent.ask("tools/list")["error"]["code"] == -32000


def test_too_many_calls_at_once_are_refused_not_queued(agent: Agent, tools: Tools) -> None:
    for number in range(32):
        agent.say({"id": number, "method": "tools/call", "params": {"name": "wait"}})
    assert agent.ask("tools/call", {"name": "calc_add"}, 99)["error"]["code"] == -32000
    tools.release.set()
    assert {agent.hear()["id"] for _ in range(32)} == set(range(32))


def test_without_a_bridge_it_says_what_is_missing() -> None:
    done = subprocess.run([sys.executable, "-I", "-S", str(MCP_SERVER)], env={}, capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "BYRE_BRIDGE" in done.stderr


def test_it_starts_quickly(bridge: BridgeServer) -> None:
    before = os.times()
    agent = Agent(bridge.path)
    assert agent.ask("tools/list")["result"]
    assert agent.process.stdin
    agent.process.stdin.close()
    agent.process.wait(10)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    assert used < 0.4, "CPU seconds from start to the first list"  # 0.05 here; the mcp package's server takes 1.8


def test_the_mcp_package_agrees(bridge: BridgeServer, tools: Tools) -> None:
    mcp = pytest.importorskip("mcp")
    parameters = mcp.StdioServerParameters(
        command=sys.executable, args=["-I", "-S", str(MCP_SERVER)], env={"BYRE_BRIDGE": str(bridge.path)}
    )
    seen: list[Any] = []

    async def progress(done: float, total: float | None, message: str | None) -> None:
        seen.append((done, total, message))

    async def run() -> None:
        async with mcp.stdio_client(parameters) as (read, write), mcp.ClientSession(read, write) as session:
            await session.initialize()
            assert [tool.name for tool in (await session.list_tools()).tools] == ["calc_add", "any"]
            result = await session.call_tool("calc_add", {"a": 1})
            assert result.content[0].text == 'calc_add {"a": 1}'
            await session.call_tool("report", {}, progress_callback=progress)
            waiting = asyncio.create_task(session.call_tool("wait", {}))
            until = time.monotonic() + 10
            while not tools.waiting.is_set() and time.monotonic() < until:
                await asyncio.sleep(0.01)
            waiting.cancel()
            while not tools.cancelled.is_set() and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert tools.cancelled.is_set()

    asyncio.run(run())
    assert seen[0] == (40, 100, "nearly")
