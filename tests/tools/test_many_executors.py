"""Two hundred calls at once, over twenty executors whose connections and answers are spread over three API processes."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.deployment import Deployment, deployment
from tests.tools.executor import Executor, Sse, Ws, bound, text

EXECUTORS, CALLS = 20, 10
# what an agent that calls several tools at once does to the bridge
FAN = """
import json, os, socket, sys
count, base = int(sys.argv[1]), int(sys.argv[2])
with socket.socket(socket.AF_UNIX) as bridge:
    bridge.connect(os.environ["BYRE_BRIDGE"])
    lines = bridge.makefile("rwb")
    for n in range(count):
        lines.write(json.dumps({"id": n, "tool": "calc_add", "arguments": {"a": base, "b": n}}).encode() + b"\\n")
    lines.flush()
    for n in range(count):
        answer = json.loads(lines.readline())
        print(base + answer["id"], answer["result"]["content"][0]["text"])
"""


@pytest.fixture
def it() -> Iterator[Deployment]:
    env = {"BYRE_LEASE_SECONDS": "15", "BYRE_WORKER_SLOTS": str(EXECUTORS // 2), "BYRE_WARM_SECONDS": "2"}
    with deployment(apis=3, workers=2, env=env) as made:
        yield made


def test_two_hundred_calls_at_once_are_answered_once_each(it: Deployment, tmp_path: Path) -> None:
    program = tmp_path / "fan.py"
    program.write_text(FAN)
    seen: list[dict[str, Any]] = []
    lock = threading.Lock()
    everybody = threading.Barrier(EXECUTORS)

    def serve(number: int, executor: Executor, connection: Sse | Ws) -> None:
        calls = [connection.next("call", seconds=60) for _ in range(CALLS)]
        with lock:
            seen.extend(calls)
        everybody.wait(60)  # all are open at once
        for n, call in enumerate(calls):
            total = call["arguments"]["a"] + call["arguments"]["b"]
            answered = executor.post(it.apis[(number + n) % 3], call["connection"], call["call_id"], result=text(f"{total}"))
            assert answered.status == 200, answered

    connections: list[Sse | Ws] = []
    sessions: list[tuple[str, str]] = []
    served: list[Future[None]] = []
    pool = ThreadPoolExecutor(EXECUTORS)
    try:
        for number in range(EXECUTORS):
            executor = Executor.register(it.apis[number % 3])
            connection = executor.connect(it.apis[(number + 1) % 3], (Sse, Ws)[number % 2])
            connection.__enter__()
            connections.append(connection)
            one = bound(it.apis[number % 3], executor)
            served.append(pool.submit(serve, number, executor, connection))
            run = f"/run {sys.executable} {program} {CALLS} {number * 100}"
            sessions.append((one, str(it.apis[(number + 2) % 3].say(one, run)["cursor"])))
        for each in served:
            each.result(120)
        for number, (one, cursor) in enumerate(sessions):
            it.apis[0].occurs(one, "turn.completed", cursor)
            events = it.apis[0].events(one, cursor)
            calls = [e["data"] for e in events if e["type"] == "tool.call" and e["data"]["name"] == "calc_add"]
            results = {e["data"]["call_id"]: e["data"]["result"] for e in events if e["type"] == "tool.result"}
            assert len(calls) == CALLS
            for call in calls:
                assert results[call["id"]] == text(f"{call['arguments']['a'] + call['arguments']['b']}")
            ends = Counter(e["data"]["call_id"] for e in events if e["type"] == "tool.result")
            assert set(ends.values()) == {1}
            [shell] = [e for e in events if e["type"] == "tool.call" and e["data"]["name"] == "shell"]
            printed = results[shell["data"]["id"]]["content"][0]["text"].splitlines()[:CALLS]
            assert sorted(printed) == sorted(f"{number * 100 + n} {number * 100 + n}" for n in range(CALLS))
    finally:
        for connection in connections:
            connection.cut()
        pool.shutdown()
    dispatched = Counter(call["call_id"] for call in seen)
    assert len(dispatched) == EXECUTORS * CALLS and set(dispatched.values()) == {1}
    assert all(connection.commands.get(timeout=20) is None for connection in connections), "nothing was sent twice"
