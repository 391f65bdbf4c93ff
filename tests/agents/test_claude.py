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
from tests.support.client import until
from tests.support.dev import BYRE, Stack
from tests.support.executor import TOOL, executor
from tests.support.messages_api import MessagesApi

MODEL = "claude-opus-4-8"
Events = list[dict[str, Any]]


def session(stack: Stack, **config: Any) -> str:
    return stack.session("claude", model=MODEL, **config)


def texts(events: Events) -> list[str]:
    return [event["data"]["text"] for event in events if event["type"] == "assistant.message"]


def kinds(events: Events) -> list[str]:
    return [event["type"] for event in events]


def descendants(stack: Stack, session_id: str) -> list[str]:
    """Command lines of processes that belong to a session's agent, by the directory or the variables that they have."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            mark = session_id.encode()
            if mark in (path / "environ").read_bytes() or mark in os.fsencode((path / "cwd").readlink()):
                found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_turn_with_thinking_text_and_a_tool_and_memory_of_it(claude_stack: Stack, api: MessagesApi) -> None:
    one = session(claude_stack, instructions="BE BRIEF", reasoning_effort="high")
    shell = json.dumps({"command": "echo made > made.txt; cat made.txt; env", "description": "x"})
    events = claude_stack.turn(one, f"@think let me see\nI will look.\n@tool Bash {shell}\nDone.")
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
    assert {asked.key for asked in api.asked} == {KEY}

    again = claude_stack.turn(one, "@recall\n@model\n@system BE BRIEF")
    assert texts(again)[0].splitlines()[-1] == "@recall\\n@model\\n@system BE BRIEF"
    assert texts(again)[0].startswith("@think let me see") and texts(again)[1:] == [MODEL, "yes"]
    assert again[-1]["data"]["cost_usd"] == pytest.approx(end["cost_usd"] / 2), (
        "the CLI's costs are a running total, ours are not"
    )
    body = api.asked[-1].body
    assert body["output_config"]["effort"] == "high"
    usage = claude_stack.call("GET", f"/sessions/{one}").json.get("usage")
    assert usage is None or usage["output_tokens"] == 36


def test_a_repository_s_settings_are_not_run_and_its_guidance_is_read(claude_stack: Stack, api: MessagesApi) -> None:
    one = session(claude_stack)
    hook = [{"matcher": "", "hooks": [{"type": "command", "command": "touch canary"}]}]
    settings = {
        "hooks": dict.fromkeys(("SessionStart", "UserPromptSubmit", "PreToolUse", "Stop"), hook),
        "apiKeyHelper": "touch canary",
    }
    script = f"mkdir -p .claude; echo GUIDANCE > CLAUDE.md; echo '{json.dumps(settings)}' > .claude/settings.json"
    claude_stack.turn(one, f"@tool Bash {json.dumps({'command': script, 'description': 'x'})}\ndone")
    workers = set(claude_stack.info["worker_pids"])
    claude_stack.interrupt(one)
    kill_agent(claude_stack, one)
    events = claude_stack.turn(one, f"@tool Bash {json.dumps({'command': 'ls -A', 'description': 'x'})}\ndone")
    listed = next(event for event in events if event["type"] == "tool.result")["data"]["result"]["content"][0]["text"].split()
    assert "CLAUDE.md" in listed and "canary" not in listed
    assert "GUIDANCE" in json.dumps(api.asked[-1].body)
    assert workers == set(claude_stack.reread()["worker_pids"])


def kill_agent(stack: Stack, one: str) -> None:
    """Kills the session's idle agent, so that the next turn starts one from the checkpoint."""
    mark = one.encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (path / "environ").read_bytes() and b"stream-json" in (path / "cmdline").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
        except OSError:
            continue
    until("the agent is gone", lambda: not descendants(stack, one))


def test_a_tool_call_is_answered_by_an_executor_in_another_process(claude_stack: Stack) -> None:
    with executor(claude_stack.info) as found:
        binding = {"alias": "calc", "executor": found, "runtime": [TOOL]}
        one = session(claude_stack, bindings=[binding])
        assert "mcp__byre__calc_add" in texts(claude_stack.turn(one, "@tools"))[0].split(), "seen without searching"
        events = claude_stack.turn(one, '@tool mcp__byre__calc_add {"a": 2, "b": 40}\nsummed')
    wanted = ["turn.started", "tool.call", "tool.progress", "tool.result", "assistant.message", "turn.completed"]
    assert kinds(events) == wanted, "the call is recorded once, by the bridge"
    assert events[1]["data"]["name"] == "calc_add" and events[1]["data"]["arguments"] == {"a": 2, "b": 40}
    assert events[3]["data"]["result"]["content"][0]["text"] == "42"


def test_an_interrupt_in_mid_stream_kills_also_what_runs_in_the_background(claude_stack: Stack) -> None:
    one = session(claude_stack)
    shell = json.dumps({"command": "setsid nohup sleep 300 >/dev/null 2>&1 & disown; echo on", "description": "x"})
    cursor = claude_stack.say(one, f"@tool Bash {shell}\n@slow 200 50 tick")["cursor"]
    stream = claude_stack.follow(one, str(cursor))
    assert next(event for event in stream if event["type"] == "assistant.delta")["data"]["text"].startswith("tick")
    assert any("sleep 300" in line for line in descendants(claude_stack, one))
    assert claude_stack.interrupt(one) == "interrupting"
    end = claude_stack.occurs(one, "turn.interrupted", str(cursor))
    assert end["data"]["reason"] == "user" and end["data"]["checkpoint"]
    began = time.monotonic()
    until("no process of it is left", lambda: not descendants(claude_stack, one), seconds=10)
    assert time.monotonic() - began < 10
    assert claude_stack.becomes(one, "idle") == "idle"
    after = claude_stack.turn(one, "@recall")
    assert texts(after)[0].splitlines() == [
        f"@tool Bash {shell}\\n@slow 200 50 tick",
        "[Request interrupted by user]",
        "@recall",
    ]


def test_a_steering_message_is_taken_into_the_running_turn(claude_stack: Stack) -> None:
    one = session(claude_stack)
    shell = json.dumps({"command": "while [ ! -e go ]; do sleep 0.05; done", "description": "x"})
    cursor = str(claude_stack.say(one, f"@tool Bash {shell}\nnever said: the model answers the steering message")["cursor"])
    claude_stack.occurs(one, "tool.call", cursor)
    steering = claude_stack.say(one, "and this too", delivery="steer")
    claude_stack.occurs(one, "turn.steered", cursor)
    (work,) = claude_stack.state.glob(f"workspaces/sessions/*/{one}/work")
    (work / "go").touch()
    end = claude_stack.occurs(one, "turn.completed", cursor)
    assert "returned" not in end["data"]
    assert any("and this too" in text for text in texts(claude_stack.events(one, cursor)))
    assert [event["data"]["inputs"] for event in claude_stack.events(one) if event["type"] == "turn.steered"] == [
        [steering["id"]]
    ]


def test_a_steering_message_that_comes_late_is_answered_in_the_same_turn(claude_stack: Stack) -> None:
    one = session(claude_stack)
    cursor = str(claude_stack.say(one, "@slow 60 50 tock")["cursor"])
    next(event for event in claude_stack.follow(one, cursor) if event["type"] == "assistant.delta")
    claude_stack.say(one, "the last word", delivery="steer")
    claude_stack.occurs(one, "turn.completed", cursor)
    events = claude_stack.events(one, cursor)
    assert kinds(events).count("turn.started") == 1
    assert texts(events) == ["tock" * 60, "the last word"]
    assert events[-1]["data"]["usage"]["output_tokens"] == 24, "of both answers"


def test_another_worker_goes_on_with_the_cli_s_own_memory(claude_stack: Stack) -> None:
    one = session(claude_stack)
    claude_stack.turn(one, "remember the heron")
    # its agent is a grandchild of the worker that holds it; the other one may be anybody's
    for pid in claude_stack.reread()["worker_pids"]:
        os.kill(pid, signal.SIGKILL)
    began = time.monotonic()
    until("no process of it is left", lambda: not descendants(claude_stack, one), seconds=10)
    assert time.monotonic() - began < 10
    events = claude_stack.turn(one, "@recall")
    assert texts(events) == ["remember the heron\n@recall"]
    assert events[0]["data"]["epoch"] > 1


def test_a_tenant_s_own_key_goes_before_the_deployment_s(claude_stack: Stack, api: MessagesApi) -> None:
    env = {**claude_stack.env, "BYRE_OBJECT_STORE": claude_stack.info["object_store"]}
    env["BYRE_SECRET_KEY"] = (claude_stack.state / "secret-key").read_text().strip()
    own = "sk-of-the-tenant-9876543210"

    def key(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*BYRE, "key", *words], env=env, input=text, capture_output=True, text=True, timeout=60, check=True
        )

    key("set", "--tenant", "dev", "--vendor", "claude", text=own + "\n")
    try:
        assert own not in key("list", "--tenant", "dev").stdout
        one = session(claude_stack)
        claude_stack.turn(one, f"my key is {own[:10]}{own[10:]}")
        asked = next(asked for asked in reversed(api.asked) if asked.text.startswith("my key is"))
        assert asked.key == own
        assert texts(claude_stack.events(one)) == ["my key is [secret]"]
    finally:
        key("delete", "--tenant", "dev", "--vendor", "claude")
    stored = [
        path for path in (claude_stack.state / "store").rglob("*") if path.is_file() and own.encode() in path.read_bytes()
    ]
    assert [path for path in stored if "/log/" not in str(path) and "/pending/" not in str(path)] == []


REFUSALS = [
    ("@status 500", "turn.failed", "vendor_error"),
    ("@status 400", "turn.failed", "vendor_refused"),
    ("@status 401", "turn.failed", "vendor_auth"),
    ("half\n@drop of it", "turn.failed", "vendor_error"),
    ("@malformed", "turn.failed", None),
]


@pytest.mark.parametrize(("text", "kind", "code"), REFUSALS)
def test_a_failing_vendor_ends_the_turn_and_the_next_one_works(
    claude_stack: Stack, text: str, kind: str, code: str | None
) -> None:
    one = session(claude_stack)
    claude_stack.turn(one, "before")
    end = claude_stack.turn(one, text)[-1]
    assert end["type"] == kind and (code is None or end["data"]["code"] == code), end
    assert claude_stack.becomes(one, "failed") == "failed"
    assert claude_stack.call("POST", f"/sessions/{one}/resume").status == 200
    assert texts(claude_stack.turn(one, "@recall")) == ["before\n@recall"]


@pytest.mark.parametrize(
    "text", ["@status 429 retry-after=12 times=1", "@status 429 retry-after=1 times=2", "@status 529 times=2"]
)
def test_a_limited_vendor_parks_the_turn_until_the_reset(claude_stack: Stack, api: MessagesApi, text: str) -> None:
    one = session(claude_stack)
    cursor = str(claude_stack.say(one, text)["cursor"])
    limited = claude_stack.occurs(one, "rate_limited", cursor)
    assert limited["data"]["retry_after"] >= 12 or "retry-after=12" not in text
    assert claude_stack.status(one) == "queued"
    if "retry-after=12" not in text:
        assert limited["data"]["retry_after"] == 60, "the vendor didn't say when"
        return
    asked = len(api.asked)
    assert claude_stack.status(one) == "queued" and len(api.asked) == asked
    claude_stack.occurs(one, "turn.completed", cursor)
    assert claude_stack.becomes(one, "idle") == "idle"


def test_a_hanging_vendor_shows_as_stuck_and_can_be_interrupted(claude_stack: Stack) -> None:
    one = session(claude_stack)
    claude_stack.turn(one, "before")
    cursor = str(claude_stack.say(one, "@hang")["cursor"])
    until(
        "the log says that it is stuck",
        lambda: f"session={one}" in claude_stack.text() and "turn is stuck" in claude_stack.text(),
    )
    claude_stack.interrupt(one)
    assert claude_stack.occurs(one, "turn.interrupted", cursor)["data"]["reason"] == "user"
    assert texts(claude_stack.turn(one, "@recall"))[0].splitlines()[0] == "before"


def test_a_turn_that_uses_too_many_tokens_is_ended(claude_stack: Stack) -> None:
    one = session(claude_stack)
    step = json.dumps({"command": "true", "description": "x"})
    events = claude_stack.turn(one, "\n".join([f"@tool Bash {step}"] * 40 + ["never"]))
    end = events[-1]
    assert end["type"] == "turn.interrupted" and end["data"]["reason"] == "limit", end
    assert "BYRE_TURN_TOKENS" in end["data"]["message"] and end["data"]["usage"]["output_tokens"] > 100
    assert claude_stack.status(one) == "interrupted"
    assert claude_stack.call("POST", f"/sessions/{one}/resume").status == 200
    assert texts(claude_stack.turn(one, "after"))[-1] == "after"


def test_no_key_is_in_the_log_or_on_any_stream(claude_stack: Stack) -> None:
    assert KEY not in claude_stack.text()
    one = session(claude_stack)
    cursor = str(claude_stack.say(one, f"@slow 3 60 {KEY}")["cursor"])
    seen = ""
    for event in claude_stack.follow(one, cursor):
        seen += json.dumps(event)
        if event["type"] == "turn.completed":
            break
    assert KEY not in seen and KEY[8:] not in seen and "[secret]" in seen
