"""The script harness is no bottleneck: its start and its deltas, through pipe, line reader and adapter."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.workers.agents import Agent
from workers.harness.base import Delta, Done
from workers.process import Guardian


def deltas_a_second(agent: Agent, count: int) -> float:
    start = time.monotonic()
    heard = agent.turn(f"/stream {count} 0 " + "some words " * (count // 2))
    took = time.monotonic() - start
    assert sum(isinstance(output, Delta) for output in heard) == count and isinstance(heard[-1], Done)
    return count / took


def test_deltas_are_far_above_what_one_client_can_get(guardian: Guardian, tmp_path: Path) -> None:
    agent = Agent(guardian, tmp_path)
    agent.turn("/say up")
    assert max(deltas_a_second(agent, 40_000) for _ in range(3)) > 15_000
    agent.child.kill()


@pytest.mark.bench
def test_start(guardian: Guardian, tmp_path: Path) -> None:
    """Prints milliseconds from spawn to the first message of a fresh session, and deltas a second."""
    times = []
    for number in range(15):
        start = time.monotonic()
        agent = Agent(guardian, tmp_path / str(number))
        agent.begin("/say up")
        agent.next()
        times.append((time.monotonic() - start) * 1000)
        agent.child.kill()
    agent = Agent(guardian, tmp_path / "deltas")
    rate = max(deltas_a_second(agent, 200_000) for _ in range(3))
    print(f"start to first message: median {sorted(times)[7]:.1f} ms, best {min(times):.1f} ms; {rate:,.0f} deltas/s")
    agent.child.kill()
