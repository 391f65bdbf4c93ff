"""The real Claude Code CLI in sessions: turns, tools, steering, interrupts, takeovers, and every way in which its vendor's API fails."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agents.conftest import KEY
from tests.agents.reading import descendants, kinds, texts
from tests.support.client import until
from tests.support.dev import BYRE, Stack
from tests.support.messages_api import MessagesApi

pytestmark = pytest.mark.usefixtures("claude")
MODEL = "claude-opus-4-8"


def session(stack: Stack, **config: Any) -> str:
    return stack.session("claude", model=MODEL, **config)


def test_a_turn_with_thinking_text_and_a_tool_and_memory_of_it(stack: Stack, api: MessagesApi) -> None:
    one = session(stack, instructions="BE BRIEF", reasoning_effort="high")
    shell = json.dumps({"command": "echo made > made.txt; cat made.txt; env", "description": "x"})
    events = stack.turn(one, f"@think let me see\nI will look.\n@tool Bash {shell}\nDone.")
    assert kinds(events) == [
        "turn.started", "assistant.thinking", "assistant.message", "tool.call", "tool.result", "assistant.message", "turn.completed",
    ]  # fmt: skip
    assert texts(events) == ["I will look.", "Done."]
    assert events[1]["data"]["text"] == "let me see"
    assert events[3]["data"]["name"] == "Bash"
    shown = events[4]["data"]["result"]["content"][0]["text"]
    assert shown.startswith("made\n") and "ANTHROPIC_API_KEY=[secret]" in shown
    assert not [line for line in shown.splitlines() if line.startswith("BYRE_") and not line.startswith("BYRE_MARKER=")]
    end = events[-1]["data"]
    assert end["usage"]["input_tokens"] == 20 and end["usage"]["output_tokens"] == 24 and end["cost_usd"] > 0
    assert {asked.key for asked in api.asked if asked.text.startswith("@think let me see")} == {KEY}

    again = stack.turn(one, "@recall\n@model\n@system BE BRIEF")
    assert texts(again)[0].splitlines()[-1] == "@recall\\n@model\\n@system BE BRIEF"
    assert texts(again)[0].startswith("@think let me see") and texts(again)[1:] == [MODEL, "yes"]
    assert again[-1]["data"]["cost_usd"] == pytest.approx(end["cost_usd"] / 2), (
        "the CLI's costs are a running total, ours are not"
    )
    body = api.asked[-1].body
    assert body["output_config"]["effort"] == "high"
    usage = stack.call("GET", f"/sessions/{one}").json.get("usage")
    assert usage is None or usage["output_tokens"] == 36


@pytest.mark.agents
def test_a_repository_s_settings_are_not_run_and_its_guidance_is_read(stack: Stack, api: MessagesApi) -> None:
    one = session(stack)
    hook = [{"matcher": "", "hooks": [{"type": "command", "command": "touch canary"}]}]
    settings = {
        "hooks": dict.fromkeys(("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop"), hook),
        "apiKeyHelper": "touch canary",
    }
    script = f"mkdir -p .claude; echo GUIDANCE > CLAUDE.md; echo '{json.dumps(settings)}' > .claude/settings.json"
    stack.turn(one, f"@tool Bash {json.dumps({'command': script, 'description': 'x'})}\ndone")
    workers = set(stack.reread()["worker_pids"])
    stack.interrupt(one)
    kill_agent(stack, one)
    events = stack.turn(one, f"@tool Bash {json.dumps({'command': 'ls -A', 'description': 'x'})}\ndone")
    listed = next(event for event in events if event["type"] == "tool.result")["data"]["result"]["content"][0]["text"].split()
    assert "CLAUDE.md" in listed and "canary" not in listed
    assert "GUIDANCE" in json.dumps(api.asked[-1].body)
    assert workers == set(stack.reread()["worker_pids"])


def kill_agent(stack: Stack, one: str) -> None:
    """Kills the session's idle agent, so that the next turn starts one from the checkpoint."""
    mark = one.encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes() and b"stream-json" in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue
    until("the agent is gone", lambda: not descendants(one))


def test_an_interrupt_in_mid_stream_kills_also_what_runs_in_the_background(stack: Stack) -> None:
    one = session(stack)
    shell = json.dumps({"command": "setsid nohup sleep 300 >/dev/null 2>&1 & disown; echo on", "description": "x"})
    cursor = stack.say(one, f"@tool Bash {shell}\n@slow 200 50 tick")["cursor"]
    stream = stack.follow(one, str(cursor))
    assert next(event for event in stream if event["type"] == "assistant.delta")["data"]["text"].startswith("tick")
    assert any("sleep 300" in line for line in descendants(one))
    assert stack.interrupt(one) == "interrupting"
    end = stack.occurs(one, "turn.interrupted", str(cursor))
    assert end["data"]["reason"] == "user" and end["data"]["checkpoint"]
    began = time.monotonic()
    until("no process of it is left", lambda: not descendants(one), seconds=10)
    assert time.monotonic() - began < 10
    assert stack.becomes(one, "idle") == "idle"
    after = stack.turn(one, "@recall")
    assert texts(after)[0].splitlines() == [
        f"@tool Bash {shell}\\n@slow 200 50 tick",
        "[Request interrupted by user]",
        "@recall",
    ]


@pytest.mark.agents
def test_a_steering_message_is_taken_into_the_running_turn(stack: Stack) -> None:
    one = session(stack)
    shell = json.dumps({"command": "while [ ! -e go ]; do sleep 0.05; done", "description": "x"})
    cursor = str(stack.say(one, f"@tool Bash {shell}\nnever said: the model answers the steering message")["cursor"])
    stack.occurs(one, "tool.call", cursor)
    steering = stack.say(one, "and this too", delivery="steer")
    stack.occurs(one, "turn.steered", cursor)
    (work,) = stack.state.glob(f"workspaces/sessions/*/{one}/work")
    (work / "go").touch()
    end = stack.occurs(one, "turn.completed", cursor)
    assert "returned" not in end["data"]
    assert any("and this too" in text for text in texts(stack.events(one, cursor)))
    assert [event["data"]["inputs"] for event in stack.events(one) if event["type"] == "turn.steered"] == [[steering["id"]]]


@pytest.mark.agents
def test_a_steering_message_that_comes_late_is_answered_in_the_same_turn(stack: Stack) -> None:
    one = session(stack)
    cursor = str(stack.say(one, "@slow 60 50 tock")["cursor"])
    next(event for event in stack.follow(one, cursor) if event["type"] == "assistant.delta")
    stack.say(one, "the last word", delivery="steer")
    stack.occurs(one, "turn.completed", cursor)
    events = stack.events(one, cursor)
    assert kinds(events).count("turn.started") == 1
    assert texts(events) == ["tock" * 60, "the last word"]
    assert events[-1]["data"]["usage"]["output_tokens"] == 24, "of both answers"


@pytest.mark.agents
def test_a_tenant_s_own_key_goes_before_the_deployment_s(stack: Stack, api: MessagesApi) -> None:
    env = {**stack.env, "BYRE_OBJECT_STORE": stack.info["object_store"]}
    env["BYRE_SECRET_KEY"] = (stack.state / "secret-key").read_text().strip()
    own = "sk-of-the-tenant-9876543210"

    def key(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BYRE, "key", *words], env=env, input=text, capture_output=True, text=True, timeout=60, check=True
        )

    key("set", "--tenant", "dev", "--vendor", "claude", text=own + "\n")
    try:
        assert own not in key("list", "--tenant", "dev").stdout
        one = session(stack)
        stack.turn(one, f"my key is {own[:10]}{own[10:]}")
        asked = next(asked for asked in reversed(api.asked) if asked.text.startswith("my key is"))
        assert asked.key == own
        assert texts(stack.events(one)) == ["my key is [secret]"]
    finally:
        key("delete", "--tenant", "dev", "--vendor", "claude")
    stored = [path for path in (stack.state / "store").rglob("*") if path.is_file() and own.encode() in path.read_bytes()]
    assert [path for path in stored if "/log/" not in str(path) and "/pending/" not in str(path)] == []


REFUSALS = [
    ("@status 500", "turn.failed", "vendor_error"),
    pytest.param("@status 400", "turn.failed", "vendor_refused", marks=pytest.mark.agents),
    pytest.param("@status 401", "turn.failed", "vendor_auth", marks=pytest.mark.agents),
    ("half\n@drop of it", "turn.failed", "vendor_error"),
    ("@malformed", "turn.failed", None),
]


@pytest.mark.parametrize(("text", "kind", "code"), REFUSALS)
def test_a_failing_vendor_ends_the_turn_and_the_next_one_works(stack: Stack, text: str, kind: str, code: str | None) -> None:
    one = session(stack)
    stack.turn(one, "before")
    end = stack.turn(one, text)[-1]
    assert end["type"] == kind and (code is None or end["data"]["code"] == code), end
    assert stack.becomes(one, "failed") == "failed"
    assert stack.call("POST", f"/sessions/{one}/resume").status == 200
    assert texts(stack.turn(one, "@recall")) == ["before\n@recall"]


@pytest.mark.parametrize(
    "text",
    [
        "@status 429 retry-after=12 times=1",
        pytest.param("@status 429 retry-after=1 times=2", marks=pytest.mark.agents),
        pytest.param("@status 529 times=2", marks=pytest.mark.agents),
    ],
)
def test_a_limited_vendor_parks_the_turn_until_the_reset(stack: Stack, api: MessagesApi, text: str) -> None:
    one = session(stack)
    cursor = str(stack.say(one, text)["cursor"])
    limited = stack.occurs(one, "rate_limited", cursor)
    assert limited["data"]["retry_after"] >= 12 or "retry-after=12" not in text
    assert stack.status(one) == "queued"
    if "retry-after=12" not in text:
        assert limited["data"]["retry_after"] == 60, "the vendor didn't say when"
    asked = len(api.asked)
    assert stack.status(one) == "queued" and len(api.asked) == asked
    if text.startswith("@status 429 retry-after=1 "):
        return  # the next one waits as long
    stack.occurs(one, "turn.completed", cursor, seconds=120)
    assert stack.becomes(one, "idle") == "idle"
    assert texts(stack.turn(one, "on"))[-1] == "on"


def test_a_hanging_vendor_shows_as_stuck_and_can_be_interrupted(stack: Stack) -> None:
    one = session(stack)
    stack.turn(one, "before")
    cursor = str(stack.say(one, "@hang")["cursor"])
    until(
        "the log says that it is stuck",
        lambda: f"session={one}" in stack.text() and "turn is stuck" in stack.text(),
    )
    stack.interrupt(one)
    assert stack.occurs(one, "turn.interrupted", cursor)["data"]["reason"] == "user"
    assert texts(stack.turn(one, "@recall"))[0].splitlines()[0] == "before"


@pytest.mark.agents
def test_a_turn_that_uses_too_many_tokens_is_ended(stack: Stack) -> None:
    one = session(stack)
    step = json.dumps({"command": "true", "description": "x"})
    events = stack.turn(one, "\n".join([f"@tool Bash {step}"] * 40 + ["never"]))
    end = events[-1]
    assert end["type"] == "turn.interrupted" and end["data"]["reason"] == "limit", end
    assert "BYRE_TURN_TOKENS" in end["data"]["message"] and end["data"]["usage"]["output_tokens"] > 100
    assert stack.status(one) == "interrupted"
    assert stack.call("POST", f"/sessions/{one}/resume").status == 200
    assert texts(stack.turn(one, "after"))[-1] == "after"


@pytest.mark.agents
def test_no_key_is_in_the_log_or_on_any_stream(stack: Stack) -> None:
    assert KEY not in stack.text()
    one = session(stack)
    cursor = str(stack.say(one, f"@slow 3 60 {KEY}")["cursor"])
    seen = ""
    for event in stack.follow(one, cursor):
        seen += json.dumps(event)
        if event["type"] == "turn.completed":
            break
    assert KEY not in seen and KEY[8:] not in seen and "[secret]" in seen
