"""Checkpoints with real processes: whatever worker goes on, the agent remembers exactly the conversation up to the checkpoint."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.dev import Stack, running, until

SETTLED = {"turn.completed", "turn.failed", "turn.interrupted"}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(env={"BYRE_LEASE_SECONDS": "3", "BYRE_WARM_SECONDS": "1"}) as stack:
        yield stack


def recall(stack: Stack, session: str) -> list[str]:
    """What the agent remembers of the user's messages, without the question itself."""
    turn = stack.turn(session, "/recall")
    text = next(e["data"]["text"] for e in turn if e["type"] == "assistant.message")
    return [line for line in text.splitlines() if line != "/recall"]


def checkpoint_of(turn: list[dict[str, Any]]) -> str:
    return next(str(e["data"]["checkpoint"]) for e in turn if e["type"] == "turn.completed")


def status(stack: Stack, session: str) -> str:
    return str(stack.call("GET", f"/sessions/{session}").json["status"])


def test_restore_brings_back_the_memory_and_the_files_of_any_checkpoint(stack: Stack) -> None:
    session = stack.session()
    marks = [checkpoint_of(stack.turn(session, f"/say {n}\n/run echo {n} >> notes.txt")) for n in ("one", "two", "three")]
    answer = stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": marks[1]})
    assert answer.status == 200, answer.body
    assert answer.json["status"] == "idle"
    assert answer.json["checkpoint"]["id"] == marks[1]
    assert [m for m in recall(stack, session) if "three" in m] == []
    turn = stack.turn(session, "/run cat notes.txt")
    result = next(e["data"]["result"] for e in turn if e["type"] == "tool.result")
    assert "one\ntwo\n" in result["content"][0]["text"]
    assert "three" not in result["content"][0]["text"]
    later = stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": marks[2]})
    assert later.status == 409, "a checkpoint that a restore left behind was restored"
    assert stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": "0" * 32}).status == 404


def test_a_restore_refuses_cursors_of_what_it_dropped_and_keeps_the_others(stack: Stack) -> None:
    session = stack.session()
    first = stack.turn(session, "/say one")
    kept = stack.events(session)
    second = stack.turn(session, "/say two")
    assert stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": checkpoint_of(first)}).status == 200
    lost = stack.call("GET", f"/sessions/{session}/events?after={second[-1]['cursor']}")
    assert lost.status == 409
    assert lost.json["error"]["code"] == "cursor_unavailable"
    good = lost.headers["byre-earliest-cursor"]
    assert good == kept[-1]["cursor"], "the earliest good cursor isn't the last event that is still there"
    rest = stack.events(session, good)
    assert rest[0]["type"] == "session.restored"
    assert [e["id"] for e in stack.events(session)] == [e["id"] for e in kept + rest]


def test_restore_waits_for_nothing_that_runs(stack: Stack) -> None:
    session = stack.session()
    mark = checkpoint_of(stack.turn(session, "/say one"))
    stack.say(session, "/sleep 30")
    until("it runs", lambda: status(stack, session) == "running")
    assert stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": mark}).status == 409
    assert stack.call("POST", f"/sessions/{session}/events", {"type": "user.interrupt"}).json["status"] == "interrupting"
    until("it is idle", lambda: status(stack, session) == "idle")
    assert stack.call("POST", f"/sessions/{session}/restore", {"checkpoint": mark}).status == 200


def test_resume_only_after_an_end_that_was_no_good(stack: Stack) -> None:
    session = stack.session()
    assert stack.call("POST", f"/sessions/{session}/resume").status == 409
    stack.turn(session, "/say kept")
    failed = stack.turn(session, "/say lost\n/fail on purpose")
    assert failed[-1]["type"] == "turn.failed"
    assert status(stack, session) == "failed"
    refused = stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "x"})
    assert refused.status == 409
    assert stack.call("POST", f"/sessions/{session}/resume").json["status"] == "idle"
    assert recall(stack, session) == ["/say kept"]
    resumed = next(e for e in stack.events(session) if e["type"] == "session.resumed")
    assert resumed["data"]["dropped"] == [failed[0]["data"]["turn"]]
    assert stack.call("POST", f"/sessions/{session}/close").status == 202
    assert stack.call("POST", f"/sessions/{session}/resume").status == 409


def test_flush_publishes_and_sync_says_so(stack: Stack) -> None:
    session = stack.session()
    mark = checkpoint_of(stack.turn(session, "/say one"))
    flushed = stack.call("POST", f"/sessions/{session}/flush")
    assert flushed.status == 200, flushed.body
    assert flushed.json["checkpoint"] == flushed.json["native_checkpoint"] == mark
    assert flushed.json["pending"] is False
    assert flushed.json["resume_offset"] == len(stack.events(session))
    assert flushed.json["history_bytes"] > 0
    assert stack.call("GET", f"/sessions/{session}/sync").json == flushed.json


def test_a_session_goes_on_with_another_data_directory_and_the_same_store(tmp_path: Path) -> None:
    env = {"BYRE_OBJECT_STORE": f"file://{tmp_path / 'store'}", "BYRE_SECRET_KEY": os.urandom(32).hex()}
    with running(env=env) as first:
        session = first.session()
        first.turn(session, "/say one\n/write a.txt alpha")
        first.turn(session, "/say two")
        token = first.info["management_token"]
        before = first.events(session)
    with running(env=env) as second:
        second.info["management_token"] = token
        assert [e["id"] for e in second.events(session)] == [e["id"] for e in before]
        assert recall(second, session) == ["/say one\\n/write a.txt alpha", "/say two"]


def test_takeover_within_lease_and_sweep_and_only_the_last_checkpoint_is_remembered() -> None:
    lease, sweep = 3.0, 1.0
    with running(workers=2, env={"BYRE_LEASE_SECONDS": str(lease), "BYRE_SWEEP_SECONDS": str(sweep)}) as stack:
        session = stack.session()
        stack.turn(session, "/say kept")
        stack.say(session, "/say lost\n/sleep 60")
        until("it runs", lambda: any(e["data"].get("text") == "lost" for e in stack.events(session)))
        holder = holding(stack)
        killed = time.monotonic()
        os.kill(holder, signal.SIGKILL)
        until("it is interrupted", lambda: status(stack, session) == "interrupted", seconds=30)
        took = time.monotonic() - killed
        assert took < lease + 2 * sweep + 2, f"takeover took {took:.1f} s"
        assert stack.call("POST", f"/sessions/{session}/resume").status == 200
        assert recall(stack, session) == ["/say kept"]


def holding(stack: Stack) -> int:
    """The worker that has a harness: the only one with a warm session here."""
    found = [w for w in stack.info["worker_pids"] if harnesses_of(w)]
    assert len(found) == 1, f"workers with a harness: {found}"
    return int(found[0])


def harnesses_of(worker: int) -> list[int]:
    """Script agents below a worker."""
    children: dict[int, list[int]] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()
            except (OSError, IndexError):
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [worker]
    while todo:
        for child in children.get(todo.pop(), []):
            todo.append(child)
            if b"script_agent" in commands[child]:
                found.append(child)
    return found


def test_a_paused_worker_writes_nothing_when_it_goes_on_and_its_harness_is_dead() -> None:
    with running(workers=2, env={"BYRE_LEASE_SECONDS": "2", "BYRE_SWEEP_SECONDS": "0.5"}) as stack:
        session = stack.session()
        stack.say(session, "/emit 100000 20 20")
        until("it runs", lambda: len(stack.events(session)) > 5)
        holder = holding(stack)
        agents = harnesses_of(holder)
        os.kill(holder, signal.SIGSTOP)
        try:
            until("it is interrupted", lambda: status(stack, session) == "interrupted", seconds=30)
            seen = [e["id"] for e in stack.events(session)]
        finally:
            os.kill(holder, signal.SIGCONT)
        until("its harness is dead", lambda: not any(map(alive, agents)), seconds=2)
        until("the worker has noticed", lambda: not harnesses_of(holder), seconds=10)
        assert [e["id"] for e in stack.events(session)] == seen
        assert [e["type"] for e in stack.events(session)][-1] == "turn.interrupted"


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def killed(pid: int) -> bool:
    """Kills a process; False if there is none."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def test_a_session_that_loses_every_worker_fails_after_a_bounded_number() -> None:
    env = {"BYRE_LEASE_SECONDS": "1.5", "BYRE_SWEEP_SECONDS": "0.5", "BYRE_MAX_ATTEMPTS": "2"}
    with running(env=env) as stack:
        session = stack.session()
        for expected in ("interrupted", "failed"):
            stack.say(session, "/sleep 60")
            until("it runs", lambda: status(stack, session) == "running")
            until("the ready file names the worker that lives", lambda: killed(stack.reread()["worker_pids"][0]))
            until(f"it is {expected}", lambda now=expected: status(stack, session) == now, seconds=30)
            if expected == "interrupted":
                assert stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "x"}).status == 409
                assert stack.call("POST", f"/sessions/{session}/resume").status == 200
        last = stack.events(session)[-1]
        assert last["type"] == "turn.failed"
        assert last["data"]["code"] == "too_many_attempts"
        assert stack.call("POST", f"/sessions/{session}/resume").json["status"] == "idle"
