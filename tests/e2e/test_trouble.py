"""Agents that misbehave, and ends that come in the middle: each turn is settled once, and nothing of it lives on."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app import processes
from tests.support.client import ENDED, until
from tests.support.dev import Stack, running


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=2, env={"BYRE_WARM_SECONDS": "2", "BYRE_LEASE_SECONDS": "10"}) as stack:
        yield stack


def end_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The one event that ended the one turn."""
    (end,) = [event for event in events if event["type"] in ENDED]
    return end


def said(events: list[dict[str, Any]]) -> list[str]:
    return [event["data"]["text"] for event in events if event["type"] == "assistant.message"]


def process_of(stack: Stack, session: str) -> int:
    """The pid that a started grandchild has, as the agent says."""

    def look() -> int:
        found = re.search(r"Started process (\d+)", "\n".join(said(stack.events(session))))
        return int(found[1]) if found else 0

    return until("a process was started", look)


def gone(pid: int) -> None:
    until(f"process {pid} is gone", lambda: processes.identify(pid) is None, seconds=10)


def test_a_session_closed_while_it_runs(stack: Stack) -> None:
    """Closed from the answer on, its open call settled, and no descendant alive 10 s later, also one that called setsid."""
    session = stack.session()
    stack.say(session, "/orphan 300\n/run sleep 299.5")
    pid = process_of(stack, session)
    stack.occurs(session, "tool.call")
    waiting = stack.say(session, "/say never")
    assert stack.call("POST", f"/sessions/{session}/close").json == {"status": "closed"}
    assert stack.status(session) == "closed"
    gone(pid)
    events = stack.events(session)
    assert [e["type"] for e in events][-3:] == ["tool.result", "turn.interrupted", "session.closed"]
    assert events[-3]["data"]["result"]["unknown_outcome"] is True
    assert events[-2]["data"]["reason"] == "closed"
    assert not [e for e in events if e["type"] == "turn.started" and waiting["id"] in e["data"]["inputs"]]
    assert list(stack.follow(session)) == events, "its stream ends after its last event"
    assert stack.call("POST", f"/sessions/{session}/close").json == {"status": "closed"}
    refused = stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "x"})
    assert refused.status == 409
    assert stack.interrupt(session) == "closed"


def test_a_deaf_agent_is_killed_and_the_session_goes_on_from_its_checkpoint(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "remember me")
    stack.say(session, "/orphan 300\n/hang")
    pid = process_of(stack, session)
    assert stack.interrupt(session) == "interrupting"
    stack.occurs(session, "turn.interrupted", seconds=30)
    assert stack.becomes(session, "idle") == "idle"
    gone(pid)
    (memory,) = said(stack.turn(session, "/recall"))
    assert "remember me" in memory
    assert "/hang" not in memory


@pytest.mark.parametrize(("line", "code"), [("/crash", "harness_exited"), ("/fail no reason", "script_failed")])
def test_a_failed_turn_waits_for_a_resume(stack: Stack, line: str, code: str) -> None:
    session = stack.session()
    stack.turn(session, "remember me")
    end = end_of(stack.turn(session, line))
    assert (end["type"], end["data"]["code"]) == ("turn.failed", code)
    assert stack.status(session) == "failed"
    assert stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "x"}).status == 409
    resumed = stack.call("POST", f"/sessions/{session}/resume")
    assert (resumed.status, resumed.json["status"]) == (200, "idle")
    assert stack.occurs(session, "session.resumed")["data"]["dropped"] == [end["data"]["turn"]]
    (memory,) = said(stack.turn(session, "/recall"))
    assert "remember me" in memory
    assert line not in memory


def test_garbage_is_passed_over(stack: Stack) -> None:
    session = stack.session()
    events = stack.turn(session, "/say before\n/garbage\n/say after")
    assert said(events) == ["before", "after"]
    assert end_of(events)["type"] == "turn.completed"


def test_a_rate_limit_parks_the_turn_and_it_goes_on_by_itself(stack: Stack) -> None:
    session = stack.session()
    first = stack.say(session, "/ratelimit 2\n/say done")
    limited = stack.occurs(session, "rate_limited")
    assert stack.status(session) == "queued"
    done = stack.occurs(session, "turn.completed")
    events = stack.events(session)
    assert [e["data"]["inputs"] for e in events if e["type"] == "turn.started"] == [[first["id"]]] * 2
    assert said(events) == ["done"]
    assert done["time"] > limited["time"]
    starts = [e["time"] for e in events if e["type"] == "turn.started"]
    reset = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(limited["data"]["reset_ms"] / 1000))
    assert starts[1] >= reset, "not before the limit ends"
    assert not [e for e in events if e["type"] == "turn.failed"]


def test_what_a_turn_leaves_behind_ends_with_its_process(stack: Stack) -> None:
    session = stack.session()
    assert end_of(stack.turn(session, "/orphan 300"))["type"] == "turn.completed"
    gone(process_of(stack, session))


def test_a_restart_keeps_the_memory(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "remember me")
    before = stack.events(session)
    assert stack.stop() == 0
    stack.start()
    assert stack.events(session) == before
    assert "remember me" in said(stack.turn(session, "/recall"))[0]
