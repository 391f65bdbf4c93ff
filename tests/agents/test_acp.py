"""ACP agents in sessions: a scripted one, and the real one from npm."""

from __future__ import annotations

import json
import time

import pytest

from tests.agents.conftest import ACP_KEY
from tests.agents.reading import descendants, kill_workers, kinds, texts
from tests.support.client import until
from tests.support.dev import Stack
from tests.support.executor import TOOL, executor
from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import required


def test_a_turn_with_thoughts_a_plan_a_tool_call_and_a_permission(stack: Stack) -> None:
    one = stack.session("scripted", instructions="BE BRIEF")
    events = stack.turn(one, "/think hm\nhello\nthere\n/plan look\n/perm\n/files\n/garbage\n/cost 0.5")
    assert kinds(events) == [
        "turn.started", "assistant.thinking", "assistant.message", "assistant.thinking", "tool.call", "tool.result",
        "assistant.message", "turn.completed",
    ]  # fmt: skip
    assert [event["data"]["text"] for event in events if event["type"] == "assistant.thinking"] == ["hm", "Plan:\n- [x] look"]
    assert texts(events) == ["hellothere", "-32601"]
    assert events[4]["data"]["name"] == "edit" and events[4]["data"]["arguments"] == {"path": "a.txt"}
    assert json.loads(events[5]["data"]["result"]["content"][0]["text"]) == {"outcome": "selected", "optionId": "yes"}
    assert events[-1]["data"]["usage"] == {"input_tokens": 3, "output_tokens": 4} and events[-1]["data"]["cost_usd"] == 0.5
    assert texts(stack.turn(one, "/blocks")) == ["text"], "instructions went before the first prompt only"


def test_interrupt_background_jobs_and_memory_of_another_process(stack: Stack) -> None:
    one = stack.session("scripted")
    cursor = str(stack.say(one, "/run sleep 300\n/slow 400")["cursor"])
    next(event for event in stack.follow(one, cursor) if event["type"] == "assistant.delta")
    assert any("sleep 300" in line for line in descendants(one))
    stack.interrupt(one)
    end = stack.occurs(one, "turn.interrupted", cursor)
    assert end["data"]["reason"] == "user" and end["data"]["checkpoint"]
    began = time.monotonic()
    until("no process of it is left", lambda: not descendants(one), seconds=10)
    assert time.monotonic() - began < 10
    assert texts(stack.turn(one, "/recall")) == ["/run sleep 300\n/recall"]
    kill_workers(stack)
    until("no process of it is left", lambda: not descendants(one), seconds=10)
    assert texts(stack.turn(one, "/recall")) == ["/run sleep 300\n/recall\n/recall"]


def test_an_agent_that_cannot_load_says_that_it_has_forgotten(stack: Stack) -> None:
    one = stack.session("forgetful")
    stack.turn(one, "/slow 1")
    cursor = str(stack.say(one, "/slow 400")["cursor"])
    next(event for event in stack.follow(one, cursor) if event["type"] == "assistant.delta")
    stack.interrupt(one)
    stack.occurs(one, "turn.interrupted", cursor)
    said = texts(stack.turn(one, "/recall"))
    assert "without memory" in said[0] and said[1] == "/recall"


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [("/error out of order", "turn.failed", "agent_error"), ("/cost 2\n/slow 400", "turn.interrupted", None)],
)
def test_what_ends_a_turn_otherwise(stack: Stack, text: str, kind: str, code: str | None) -> None:
    one = stack.session("scripted")
    stack.turn(one, "before")
    end = stack.turn(one, text)[-1]
    assert end["type"] == kind and end["data"].get("code") == code
    assert end["data"].get("reason") in (None, "limit")
    assert stack.call("POST", f"/sessions/{one}/resume").status == 200
    assert texts(stack.turn(one, "after")) == ["after"]


def test_a_limited_agent_parks_its_turn(stack: Stack) -> None:
    one = stack.session("scripted")
    cursor = str(stack.say(one, "/error API Error: 429 rate limit")["cursor"])
    assert "429" in stack.occurs(one, "rate_limited", cursor)["data"]["detail"]
    assert stack.status(one) == "queued"


@pytest.mark.agents
@pytest.mark.usefixtures("claude")
def test_the_real_one_runs_a_turn_with_tools(stack: Stack, api: MessagesApi) -> None:
    required("acp")
    with executor(stack.info) as found:
        one = stack.session("real", bindings=[{"alias": "calc", "executor": found, "runtime": [TOOL]}])
        shell = json.dumps({"command": "echo made > made.txt; cat made.txt", "description": "x"})
        events = stack.turn(
            one, f'@think hm\nI will look.\n@tool Bash {shell}\n@tool mcp__byre__calc_add {{"a": 2, "b": 40}}\nDone.'
        )
    assert events[-1]["type"] == "turn.completed", events[-1]
    said = texts(events)  # it may say something of its own about its permission mode in between
    assert (said[0], said[-1]) == ("I will look.", "Done.")
    calls = [event["data"] for event in events if event["type"] == "tool.call"]
    assert [call["name"] for call in calls] == ["Bash", "calc_add"]
    results = [event["data"]["result"]["content"][0]["text"] for event in events if event["type"] == "tool.result"]
    assert "made" in results[0] and results[1] == "42"
    assert {asked.key for asked in api.asked if asked.text.startswith("@think hm\nI will look")} == {ACP_KEY}
    kill_workers(stack)
    until("no process of it is left", lambda: not descendants(one), seconds=10)
    assert texts(stack.turn(one, "@recall"))[0].splitlines()[-1] == "@recall"
    assert texts(stack.turn(one, "@recall"))[0].startswith("@think hm")
