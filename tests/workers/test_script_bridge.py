"""The script agent calls the session's tools over the bridge, and says so when there is none."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.workers.agents import Agent
from tests.workers.procs import until
from workers.harness.base import Done, Interrupted, Message, ToolCall, ToolResult
from workers.process import Guardian


class Bridge:
    """Answers each call by what `answer` gives for it: lines, or None to close the connection."""

    def __init__(self, path: Path, answer: Callable[[dict[str, Any]], list[dict[str, Any]] | None]) -> None:
        self.calls: list[dict[str, Any]] = []
        self.closed = threading.Event()
        self._answer = answer
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            with line, line.makefile("rb") as calls:
                for call in map(json.loads, calls):
                    self.calls.append(call)
                    answers = self._answer(call)
                    if answers is None:
                        break
                    for answer in answers:
                        line.sendall(json.dumps({"id": call["id"], **answer}).encode() + b"\n")
            self.closed.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


@pytest.fixture
def bridged(guardian: Guardian, tmp_path: Path) -> Iterator[Callable[..., tuple[Agent, Bridge]]]:
    made: list[tuple[Agent, Bridge]] = []

    def make(answer: Callable[[dict[str, Any]], list[dict[str, Any]] | None]) -> tuple[Agent, Bridge]:
        bridge = Bridge(tmp_path / "b.sock", answer)
        made.append((Agent(guardian, tmp_path, bridge=tmp_path / "b.sock"), bridge))
        return made[-1]

    yield make
    for agent, bridge in made:
        agent.child.kill()
        bridge.close()


OK = {"result": {"content": [{"type": "text", "text": "42"}]}}


def test_tools_go_over_the_bridge_and_not_to_stdout(bridged: Callable[..., tuple[Agent, Bridge]]) -> None:
    agent, bridge = bridged(lambda call: [{"progress": {"pct": 50}}, OK])
    heard = agent.turn('/tool calc_add {"a": 2}\n/tool bare\n/ask {"question": "ü?", "blocking": true}\n/title Add b\n/say on')
    assert [type(output) for output in heard] == [Message, Done]
    assert [(call["tool"], call["arguments"]) for call in bridge.calls] == [
        ("calc_add", {"a": 2}),
        ("bare", {}),
        ("ask_human", {"question": "ü?", "blocking": True}),
        ("set_merge_title", {"title": "Add b"}),
    ]
    assert len({call["id"] for call in bridge.calls}) == 4


def test_a_bridge_that_goes_away_does_not_end_the_turn(bridged: Callable[..., tuple[Agent, Bridge]]) -> None:
    agent, _ = bridged(lambda call: None)
    assert [type(output) for output in agent.turn("/tool x {}\n/say on")] == [Message, Done]


def test_an_interrupt_closes_the_call(bridged: Callable[..., tuple[Agent, Bridge]]) -> None:
    agent, bridge = bridged(lambda call: [])
    agent.begin("/tool slow {}")
    until(lambda: bridge.calls)
    agent.child.send(agent.adapter.interrupt() or b"")
    assert agent.rest() == [Interrupted()]
    assert bridge.closed.wait(5)


@pytest.mark.parametrize("with_path", [False, True])
def test_without_a_bridge_the_call_is_an_error(guardian: Guardian, tmp_path: Path, with_path: bool) -> None:
    agent = Agent(guardian, tmp_path, bridge=tmp_path / "nobody" if with_path else None)
    heard = agent.turn('/tool x {"a": 1}\n/say on')
    call, result = heard[:2]
    assert isinstance(call, ToolCall) and (call.name, call.arguments) == ("x", {"a": 1})
    assert isinstance(result, ToolResult) and result.id == call.id and result.result["is_error"]
    assert "tool bridge" in result.result["content"][0]["text"]
    assert heard[2] == Message("on")
    agent.child.kill()
