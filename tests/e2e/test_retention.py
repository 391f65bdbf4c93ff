"""Retention and damage with real processes: what is damaged is named and refused, others go on; the commands do what they say."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.store import keys
from app.store.directory import DirectoryStore
from tests.log.lab import all_keys
from tests.support.dev import BYRE, Stack, running, until


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(env={"BYRE_WARM_SECONDS": "0.1", "BYRE_SECRET_KEY": "k" * 32}) as made:
        yield made


def store_root(stack: Stack) -> Path:
    return next(path.parent for path in stack.state.rglob("tenants"))


def store_of(stack: Stack) -> DirectoryStore:
    return DirectoryStore(store_root(stack))


def byre(stack: Stack, *arguments: str, redis: bool = False) -> subprocess.CompletedProcess[str]:
    env: dict[str, Any] = {**stack.env, "BYRE_OBJECT_STORE": str(store_root(stack))}
    if redis:
        env["BYRE_REDIS_URL"] = stack.info["redis_url"]
    return subprocess.run([*BYRE, *arguments], env=env, capture_output=True, text=True, timeout=120)


def objects(stack: Stack, session: str, what: str) -> list[str]:
    return [key for key in all_keys(store_of(stack), "tenants/") if session in key and f"/{what}/" in key]


def flip(stack: Stack, key: str) -> bytes:
    """Flips a bit in the middle of an object on disk; gives what it was."""
    path = store_root(stack) / key
    body = path.read_bytes()
    broken = bytearray(body)
    broken[len(body) // 2] ^= 1
    path.write_bytes(bytes(broken))
    return body


def settled(stack: Stack, session: str) -> None:
    until("the session rests", lambda: stack.call("GET", f"/sessions/{session}").json["status"] == "idle")


def test_a_damaged_segment_is_named_and_freezes_only_its_session(stack: Stack) -> None:
    bad, good = stack.session(), stack.session()
    for each in (bad, good):
        stack.turn(each, "hello")
        settled(stack, each)
    assert byre(stack, "check", "--session", bad).returncode == 0
    key = objects(stack, bad, "log")[0]
    stack.stop()
    body = flip(stack, key)
    stack.start()

    refused = [
        stack.call("GET", f"/sessions/{bad}/events"),
        stack.call("POST", f"/sessions/{bad}/events", {"type": "user.message", "text": "more"}),
        stack.call("GET", f"/sessions/{bad}"),
    ]
    for reply in refused:
        assert reply.status == 500, reply
        assert reply.json["error"]["code"] == "brain_error"
        assert "tenants/" not in reply.body.decode(), "what a client is told names no object"
    assert key in stack.text(), "the log does"
    assert any(e["type"] == "turn.completed" for e in stack.turn(good, "and you?"))

    wrong = byre(stack, "check", "--session", bad)
    assert wrong.returncode == 1
    assert key in wrong.stdout
    assert byre(stack, "check", "--session", good).returncode == 0

    (store_root(stack) / key).write_bytes(body)
    assert stack.call("GET", f"/sessions/{bad}/events").status == 500, "nothing thaws by itself"
    assert byre(stack, "check", "--session", bad, "--thaw").returncode == 0
    assert any(e["type"] == "turn.completed" for e in stack.turn(bad, "again"))


@pytest.mark.parametrize("what", ["flip", "truncate"])
def test_a_damaged_checkpoint_fails_its_turn_and_is_named(stack: Stack, what: str) -> None:
    session = stack.session()
    stack.turn(session, "hello")
    settled(stack, session)
    key = objects(stack, session, "checkpoints")[0]
    body = (store_root(stack) / key).read_bytes()
    if what == "flip":
        flip(stack, key)
    else:
        (store_root(stack) / key).write_bytes(body[: len(body) // 2])
    until("the harness is gone", lambda: not list(stack.state.rglob(f"sessions/*/{session}")))
    assert key in byre(stack, "check", "--session", session).stdout
    events = stack.turn(session, "what did I say?")
    assert [e["data"]["code"] for e in events if e["type"] == "turn.failed"] == ["checkpoint_corrupt"]
    (store_root(stack) / key).write_bytes(body)


def test_gc_counts_then_moves_then_brings_back(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "hello")
    settled(stack, session)
    store = store_of(stack)
    chunk = keys.native_chunk(objects(stack, session, "log")[0].split("/")[1], "ab" * 32)
    store.put(chunk, b"nobody's")
    dry = byre(stack, "gc")
    assert dry.returncode == 0, dry.stderr
    assert "nothing was changed" in dry.stdout
    assert store.head(chunk)
    wet = byre(stack, "gc", "--apply")
    assert wet.returncode == 0, wet.stderr
    assert chunk not in all_keys(store, "tenants/")
    assert byre(stack, "gc", "--undo").returncode == 0
    assert store.get(chunk).body == b"nobody's"
    assert byre(stack, "check", "--session", session).returncode == 0


def test_a_purged_session_is_gone(stack: Stack) -> None:
    session = stack.session()
    stack.turn(session, "the secret is swordfish")
    settled(stack, session)
    first = byre(stack, "purge", "--session", session, redis=True)
    assert first.returncode == 0, first.stderr
    assert objects(stack, session, "checkpoints"), "without --yes nothing goes"
    done = byre(stack, "purge", "--session", session, "--yes", redis=True)
    assert done.returncode == 0, done.stderr
    assert objects(stack, session, "checkpoints") == []
    until("every process has noticed", lambda: stack.call("GET", f"/sessions/{session}").status == 404, seconds=90)
    assert byre(stack, "purge", "--session", "0" * 32, "--yes", redis=True).returncode == 1
