"""The programs in docs/examples, each run as its first lines say, through a network that cuts connections."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.client import until
from tests.support.deployment import TENANT, Api, Deployment, deployment
from tests.tools.executor import results, text
from tests.tools.proxy import Proxy, proxy

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
CALL = '/tool calc_add {"a": 2, "b": 40}'


def node(*needs: str) -> list[str]:
    """How to start Node.js with what an example needs ("WebSocket"); skips the test where it can't."""
    program = shutil.which("node")
    if not program:
        pytest.skip("node is missing: install Node.js 18 or later")
    for flags in ([], ["--experimental-websocket"]):
        code = f"process.exit({' && '.join(f'typeof {name} !== `undefined`' for name in ('fetch', *needs))} ? 0 : 1)"
        if subprocess.run([program, *flags, "-e", code], capture_output=True, timeout=60, check=False).returncode == 0:
            return [program, *flags]
    pytest.skip(f"this node has no {' or '.join(('fetch', *needs))}: install Node.js 22 or later")


def command(name: str, *arguments: str) -> list[str]:
    """The command line of an example."""
    if name.endswith(".py"):
        return [sys.executable, str(EXAMPLES / "python" / name), *arguments]
    return [*node(*(["WebSocket"] if "websocket" in arguments else [])), str(EXAMPLES / "javascript" / name), *arguments]


class Running:
    """An example that runs; each line that it prints is JSON."""

    def __init__(self, argv: list[str], token: str) -> None:
        env = {"PATH": os.environ["PATH"], "BRAIN_TOKEN": token}
        self._process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)
        self.lines: queue.Queue[Any] = queue.Queue()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stdout
        for line in self._process.stdout:
            self.lines.put(json.loads(line))
        self.lines.put(None)

    def next(self, name: str) -> Any:
        """The next line that has `name`."""
        while (line := self.lines.get(timeout=60)) is not None:
            if name in line:
                return line[name]
        raise AssertionError(f"it ended with {self._process.wait(10)}, and {name} was waited for")

    def rest(self) -> list[Any]:
        """All other lines, to its end, which must be a good one."""
        found = list(iter(lambda: self.lines.get(timeout=60), None))
        assert self._process.wait(20) == 0
        return found

    def stop(self) -> None:
        self._process.kill()
        self._process.wait(20)
        self._thread.join(20)
        assert self._process.stdout
        self._process.stdout.close()


@contextlib.contextmanager
def running(name: str, *arguments: str, token: str) -> Iterator[Running]:
    it = Running(command(name, *arguments), token)
    try:
        yield it
    finally:
        it.stop()


@pytest.fixture(scope="module")
def it() -> Iterator[Deployment]:
    with deployment(env={"BYRE_WARM_SECONDS": "2", "BYRE_WORKER_SLOTS": "16"}) as made:
        yield made


@pytest.fixture
def api(it: Deployment) -> Api:
    return it.apis[0]


@pytest.fixture
def network(api: Api) -> Iterator[Proxy]:
    with proxy(int(api.info["url"].rpartition(":")[2])) as made:
        yield made


def token(api: Api) -> str:
    return str(api.info["management_token"])


def test_every_example_says_how_it_is_run_and_is_told_of(it: Deployment) -> None:
    page = (EXAMPLES.parent / "clients.md").read_text()
    for path in EXAMPLES.rglob("*.*"):
        if path.suffix in (".py", ".mjs"):
            assert f"examples/{path.relative_to(EXAMPLES)}" in page, path
            assert path.name.startswith("brain") or re.search(
                rf"BRAIN_TOKEN=\S+ (python|node) {re.escape(path.name)} ", path.read_text()
            )


@pytest.mark.parametrize("name", ["session.py", "session.mjs"])
def test_a_session_is_followed_through_cuts_without_gap_or_repeat(api: Api, network: Proxy, name: str) -> None:
    lines = "\n".join(f"/say {n}\n/stream 4 50 abcd" for n in range(12))
    with running(name, network.url, "script", lines, token=token(api)) as it:
        seen: list[Any] = []
        while not seen or seen[-1] is not None:
            seen.append(it.lines.get(timeout=60))
            if len(seen) in (3, 20, 40):
                network.cut()
        kept = [event for event in seen[:-1] if event["type"] != "assistant.delta"]
    [started] = [event for event in kept if event["type"] == "turn.started"]
    [one] = [s["id"] for s in api.call("GET", "/sessions?limit=1000").json["sessions"] if holds(api, s["id"], started["id"])]
    assert kept == [event for event in api.events(one) if event["type"] != "user.message"]
    assert network.made >= 3, "it came back"


def holds(api: Api, session: str, event: str) -> bool:
    return any(found["id"] == event for found in api.events(session))


@pytest.mark.parametrize("transport", ["sse", "websocket"])
@pytest.mark.parametrize("name", ["executor.py", "executor.mjs"])
def test_an_executor_answers_comes_back_and_is_replaced(
    it: Deployment, api: Api, network: Proxy, name: str, transport: str
) -> None:
    with running(name, network.url, transport, token=token(api)) as example:
        executor = example.next("ready")
        one = api.session(bindings=[{"alias": "calc", "executor": executor}])
        events = api.turn(one, CALL)
        assert results(events) == [text("42")]
        assert [e["data"]["progress"] for e in events if e["type"] == "tool.progress"] == [{"message": "adding"}]

        network.cut()
        assert example.next("ready") == executor, "the same one, on another connection"
        assert results(api.turn(one, CALL)) == [text("42")]

        # somebody closes it: it registers anew, for the session that it has served
        signed = Tokens(open_store(it.store), it.env["BYRE_SECRET_KEY"]).executor_credential(TENANT, executor)
        assert api.call("POST", f"/executors/{executor}/close", token=signed).status == 200
        another = example.next("ready")
        assert another != executor
        assert results(api.turn(one, CALL)) == [text("42")]
    # and a process that is started later, with nothing but the session's id, takes over
    with running(name, network.url, transport, one, token=token(api)) as later:
        assert later.next("ready") != another
        assert results(api.turn(one, CALL)) == [text("42")]


def test_a_call_in_flight_when_the_connection_is_cut_is_not_sent_again(api: Api, network: Proxy) -> None:
    with running("executor.py", network.url, "sse", token=token(api)) as example:
        executor = example.next("ready")
        sessions = [api.session(bindings=[{"alias": "calc", "executor": executor}]) for _ in range(4)]
        cursors = [api.say(one, "\n".join([CALL] * 5))["cursor"] for one in sessions]
        for _ in range(4):
            example.next("call")
        network.cut()
        known = 0
        for one, cursor in zip(sessions, cursors, strict=True):
            until("its turn ends", lambda one=one, cursor=cursor: api.occurs(one, "turn.completed", str(cursor)))
            for result in results(api.events(one, str(cursor))):
                known += result == text("42")
                assert result == text("42") or result["is_error"]
        answered = 4
        while not example.lines.empty():
            answered += "call" in (example.lines.get() or {})
        assert known <= answered <= 20
