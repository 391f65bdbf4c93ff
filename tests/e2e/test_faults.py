"""Faults with real processes: workers killed at any moment of a turn, Redis gone, full or mute, deploys, one session and many claimers."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from app.coord.coord import Caps, RedisCoord, Seed
from app.coord.scripts import Scripts
from tests.support.dev import Stack, running, until
from tests.support.redis_server import PrivateRedis, private_redis

SETTLED = ("turn.completed", "turn.failed", "turn.interrupted")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running(workers=2, env={"BYRE_LEASE_SECONDS": "2", "BYRE_SWEEP_SECONDS": "0.5", "BYRE_MAX_ATTEMPTS": "1000"}) as stack:
        yield stack


def status(stack: Stack, session: str) -> str:
    answer = stack.call("GET", f"/sessions/{session}")
    return str(answer.json["status"]) if answer.status == 200 else ""


def check_log(events: list[dict[str, Any]]) -> None:
    """Every turn settles once and says nothing afterwards; every call has one result; epochs never fall."""
    open_turn: str | None = None
    epochs: list[int] = []
    calls: dict[str, int] = {}
    for e in events:
        turn = e["data"].get("turn")
        if e["type"] == "turn.started":
            assert open_turn is None
            open_turn = turn
            epochs.append(e["data"]["epoch"])
        elif e["type"] in SETTLED:
            assert turn == open_turn
            open_turn = None
        elif turn and not e["type"].startswith("user."):
            assert turn == open_turn, f"{e['type']} of a turn that isn't open"
        if e["type"] == "tool.call":
            calls[e["data"]["id"]] = 0
        elif e["type"] == "tool.result":
            calls[e["data"]["call_id"]] += 1
    assert open_turn is None
    assert epochs == sorted(epochs)
    assert all(n == 1 for n in calls.values()), "a call has no result, or two"


@pytest.mark.parametrize("seed", range(6))
def test_a_worker_killed_at_any_moment_of_a_turn(stack: Stack, seed: int, tmp_path: Path) -> None:
    """B1: the turn settles once, its open calls too; the next worker goes on from the last checkpoint; no input runs twice."""
    rng = random.Random(seed)
    session = stack.session()
    ran = tmp_path / "ran"
    stack.turn(session, "/say kept")
    stack.say(session, f"/run echo x >> {ran}\n/say a\n/run sleep 0.3\n/emit 50 100 200\n/run sleep 0.2")
    time.sleep(rng.uniform(0, 1.0))
    for pid in stack.reread()["worker_pids"]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until("it is settled", lambda: status(stack, session) in ("idle", "interrupted"), seconds=40)
    interrupted = status(stack, session) == "interrupted"
    if interrupted:
        assert stack.call("POST", f"/sessions/{session}/resume").status == 200
    until("it is idle", lambda: status(stack, session) == "idle", seconds=40)
    turn = stack.turn(session, "/recall")
    said = next(e["data"]["text"] for e in turn if e["type"] == "assistant.message")
    assert "/say kept" in said
    assert ("/emit" not in said) == interrupted
    assert not ran.exists() or ran.read_text() == "x\n", "the input ran twice"
    check_log(stack.events(session))


def test_a_mute_redis(stack: Stack) -> None:
    """C1: while Redis doesn't answer, reads go on from the archive, writes are refused with 503, and all goes on afterwards."""
    session = stack.session()
    stack.turn(session, "/say before")
    assert stack.call("POST", f"/sessions/{session}/flush").status == 200
    before = [e["id"] for e in stack.events(session)]
    pid = stack.reread()["redis_pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        page = stack.call("GET", f"/sessions/{session}/events", timeout=60)
        assert page.status == 200, page.body
        assert [e["id"] for e in page.json["events"]] == before
        assert stack.call("GET", f"/sessions/{session}", timeout=60).status == 200
        refused = stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "/say x"}, timeout=90)
        assert refused.status == 503
        assert int(refused.headers["retry-after"]) > 0
        assert refused.json["error"]["code"] == "unavailable"
    finally:
        os.kill(pid, signal.SIGCONT)
    until("it takes messages again", lambda: stack.call("GET", "/readyz").status == 200, seconds=30)
    stack.turn(session, "/say after")
    check_log(stack.events(session))
    assert [e["id"] for e in stack.events(session)][: len(before)] == before


def test_a_full_redis_refuses_before_it_acknowledges(stack: Stack) -> None:
    """C4: no message is acknowledged that isn't kept, and all goes on when there is room again."""
    session = stack.session()
    stack.turn(session, "/say before")
    client = redis.from_url(stack.info["redis_url"])
    client.config_set("maxmemory", "1")
    try:
        refused = stack.call(
            "POST", f"/sessions/{session}/events", {"type": "user.message", "text": "/say x", "key": "k"}, timeout=60
        )
        assert refused.status == 503, refused.body
        assert "memory" in refused.json["error"]["message"]
    finally:
        client.config_set("maxmemory", "0")
        client.close()
    again = stack.call("POST", f"/sessions/{session}/events", {"type": "user.message", "text": "/say x", "key": "k"})
    assert again.status == 202
    until("it ran", lambda: status(stack, session) == "idle")
    assert [e["data"].get("key") for e in stack.events(session) if e["type"] == "user.message"].count("k") == 1


def test_a_deploy_drains(tmp_path: Path) -> None:
    """D4: a turn that can end does; one that can't is cut with a checkpoint; what waits runs on the next worker."""
    env = {"BYRE_DRAIN_SECONDS": "1.5", "BYRE_LEASE_SECONDS": "5"}
    with running(env=env) as stack:
        short, long, queued = (stack.session() for _ in range(3))
        stack.turn(long, "/say kept")
        stack.say(short, "/sleep 0.8\n/say done")
        stack.say(long, "/say cut\n/sleep 60")
        stack.say(queued, "/sleep 60")
        stack.say(queued, "/say later")
        until("they run", lambda: all(status(stack, s) == "running" for s in (short, long, queued)))
        os.kill(stack.info["worker_pids"][0], signal.SIGTERM)
        until("the long turn is cut", lambda: status(stack, long) == "interrupted", seconds=20)
        assert stack.events(short)[-1]["type"] == "turn.completed"
        last = stack.events(long)[-1]
        assert (last["type"], last["data"]["reason"]) == ("turn.interrupted", "drained")
        assert last["data"]["checkpoint"]
        until("the queued one is cut", lambda: status(stack, queued) == "interrupted", seconds=20)
        assert stack.call("POST", f"/sessions/{queued}/resume").json["status"] in ("queued", "running")
        until("what waited has run", lambda: status(stack, queued) == "idle", seconds=30)
        assert any(e["data"].get("text") == "later" for e in stack.events(queued))
        assert stack.call("POST", f"/sessions/{long}/resume").status == 200
        said = next(e["data"]["text"] for e in stack.turn(long, "/recall") if e["type"] == "assistant.message")
        assert "/say cut" in said, "the checkpoint of the cut turn was not used"


@pytest.fixture(scope="module")
def server() -> Iterator[PrivateRedis]:
    with private_redis() as server:
        yield server


def test_twenty_workers_claim_one_session(server: PrivateRedis) -> None:
    """B6: exactly one of them gets it, in every round."""
    client = redis.from_url(server.url)
    coord = RedisCoord(Scripts(client, "claim"))
    caps = Caps(100, 100, {})
    with ThreadPoolExecutor(20) as pool:
        for n in range(30):
            log = f"s:t:{n:032x}"
            seed = Seed(
                0,
                coord.incarnation(),
                0,
                b'{"status":"queued","updated_at":""}',
                "queued",
                0,
                0,
                "script",
                b"{}",
                "",
                1000,
                {},
                {},
            )
            coord.seed(log, seed)
            start = threading.Barrier(20)

            def claim(worker: int, start: threading.Barrier = start) -> str | None:
                start.wait()
                claimed = coord.claim(f"w{worker}", 5000, 0, ["script"], caps)
                return claimed.log if claimed else None

            won = [log for log in pool.map(claim, range(20)) if log]
            assert won == [log]
    client.close()
