"""Nothing of an agent is left ten seconds after an interrupt, a close or a kill of its worker, background jobs included."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path

import pytest

from tests.agents.reading import descendants, kill_workers
from tests.support.client import until
from tests.support.dev import Stack
from tests.support.npm_agents import required

SECONDS = 10.0
_numbers = itertools.count(1)


def jobs(length: str) -> list[int]:
    """Processes that sleep for `length`, whoever their parent is by now and whatever their environment is."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (path / "cmdline").read_bytes() == f"sleep\0{length}\0".encode():
                found.append(int(path.name))
        except OSError:
            continue
    return found


def script(harness: str, command: str) -> str:
    """A message that runs `command`, and then says something for minutes."""
    if harness == "script":
        return f"/run {command}\n/stream 1500 100 {'tick ' * 1500}"
    if harness == "scripted":
        return f"/run {command}\n/slow 4000"
    return f"@tool Bash {json.dumps({'command': command, 'description': 'x'})}\n@slow 1500 100 tick"


@pytest.mark.parametrize("way", ["interrupt", "close", "kill"])
@pytest.mark.parametrize("harness", ["script", "scripted", "claude", pytest.param("real", marks=pytest.mark.agents)])
def test_nothing_of_an_agent_is_left(stack: Stack, harness: str, way: str) -> None:
    if harness in ("claude", "real"):
        required("claude")
    if harness == "real":
        required("acp")
    length = f"{30_000 + next(_numbers)}.5"
    # a job in a session of its own, with nothing in its environment or directory that says whose it is, and one that ignores signals
    quiet = f"sleep {length} >/dev/null 2>&1 </dev/null"
    command = f"(cd / && exec env -i setsid nohup {quiet}) & (trap '' TERM HUP; exec nohup {quiet}) & echo on"
    one = stack.session(harness)
    cursor = str(stack.say(one, script(harness, command))["cursor"])
    delta = next(e for e in stack.follow(one, cursor) if e["type"] == "assistant.delta" and "tick" in e["data"]["text"])
    assert delta
    assert len(until("its jobs run", lambda: len(found := jobs(length)) == 2 and found)) == 2
    assert descendants(one)
    if way == "interrupt":
        assert stack.interrupt(one) == "interrupting"
    elif way == "close":
        assert stack.call("POST", f"/sessions/{one}/close").status == 202
    else:
        kill_workers(stack)
    began = time.monotonic()
    until("nothing is left", lambda: not jobs(length) and not descendants(one), seconds=SECONDS)
    assert time.monotonic() - began < SECONDS
