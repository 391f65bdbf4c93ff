"""What a worker says of its processes, and that it kills those that belong to nobody."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.store.keys import LogName
from workers import proctree
from workers.harness.base import ProtocolError
from workers.heartbeat import Heartbeat
from workers.process import Child, Guardian
from workers.protocol_errors import ProtocolErrors


def alive(pid: int) -> bool:
    process = proctree.look(pid)
    return process is not None and process.alive


class Desk:
    """A heartbeat over a real guardian, with the sessions in the test's hands."""

    def __init__(self, state: Path) -> None:
        self.guardian = Guardian.start(state)
        self.runners: list[Any] = []
        self.told: list[Any] = []
        self.errors = ProtocolErrors()
        board: Any = SimpleNamespace(errors=lambda *said: self.told.append(said))
        pool: Any = SimpleNamespace(held=lambda: list(self.runners))
        self.beat = Heartbeat(board, "w", pool, self.guardian, self.errors, lambda: None)

    def spawn(self) -> Child:
        return self.guardian.spawn([sys.executable, "-c", "input()"], env={}, cwd=Path("/"))

    def hold(self, child: Child | None) -> None:
        host = child and SimpleNamespace(child=child, heard=0.0, adapter=SimpleNamespace(name="script"))
        self.runners.append(SimpleNamespace(name=LogName("acme", "0" * 32), host=host, task_id="t"))


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.guardian.close()


def test_a_process_that_no_session_has_is_killed_at_the_second_look(desk: Desk) -> None:
    child = desk.spawn()
    desk.hold(child)
    for _ in range(3):
        shown = desk.beat.look()
    assert (shown["held"][0]["pid"], shown["held"][0]["exited"], shown["strays"]) == (child.pid, False, [])
    desk.runners.clear()
    assert desk.beat.look()["strays"] == []
    assert alive(child.pid)
    assert desk.beat.look()["strays"] == [{"pid": child.pid, "tenant": "acme", "session_id": "0" * 32, "task_id": "t"}]
    assert child.wait(10) is not None
    assert not alive(child.pid)
    desk.beat.look()
    assert desk.beat.look()["strays"] == []
    child.close()


def test_a_process_that_is_handed_over_while_we_look_is_left_alone(desk: Desk) -> None:
    child = desk.spawn()
    desk.beat.look()
    desk.hold(child)
    desk.beat.look()
    desk.beat.look()
    assert alive(child.pid)
    child.kill()
    child.close()


def test_a_session_without_a_process_says_for_how_long(desk: Desk) -> None:
    desk.hold(None)
    desk.beat.look()
    shown = desk.beat.look()["held"][0]
    assert (shown["pid"], shown["exited"]) == (0, False)
    assert shown["bare_seconds"] > 0


def test_bad_lines_are_counted_all_and_the_last_are_kept(desk: Desk) -> None:
    for n in range(200):
        desk.errors.add("script", "acme", "s", ProtocolError(f"line {n}", b"x" * 10_000))
    desk.beat._tell_errors()
    ((tenant, counts, recent),) = desk.told
    assert (tenant, counts, len(recent)) == ("acme", {"script": 200}, 50)
    assert (recent[-1]["reason"], len(recent[-1]["raw"]), recent[-1]["size"]) == ("line 199", 4096, 10_000)
    desk.beat._tell_errors()
    assert len(desk.told) == 1
