"""Commands that come right behind their turn, before the agent has looked at it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from workers.harness.script_agent.wire import Interrupted, Wire


@pytest.fixture
def ends() -> Iterator[tuple[Wire, int]]:
    source, told = os.pipe()
    sink = os.open(os.devnull, os.O_WRONLY)
    yield Wire(source, sink), told
    for fd in (source, told, sink):
        os.close(fd)


def tell(told: int, *commands: dict[str, str]) -> None:
    os.write(told, b"".join(json.dumps(command).encode() + b"\n" for command in commands))


def test_an_interrupt_in_the_same_breath_as_its_turn(ends: tuple[Wire, int]) -> None:
    wire, told = ends
    tell(told, {"type": "turn", "turn_id": "a"}, {"type": "interrupt", "turn_id": "a"}, {"type": "turn", "turn_id": "b"})
    assert wire.next_turn()["turn_id"] == "a"
    with pytest.raises(Interrupted):
        wire.check()
    assert wire.next_turn()["turn_id"] == "b"
    wire.check()


def test_steering_in_the_same_breath_and_a_late_interrupt_of_another(ends: tuple[Wire, int]) -> None:
    wire, told = ends
    tell(
        told,
        {"type": "turn", "turn_id": "a"},
        {"type": "steer", "turn_id": "a", "id": "1"},
        {"type": "interrupt", "turn_id": "z"},
    )
    wire.next_turn()
    wire.check()
    assert [steer["id"] for steer in wire.steers] == ["1"]
