"""Thousands of simulated schedules of the real protocol, and no invariant breaks. What fails: `python -m tests.sim.replay SEED`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.run import failures, play

PARTS, EACH = 20, 250
LONG_PARTS, LONG_EACH = 40, 500
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("part", range(PARTS))
def test_schedules(part: int) -> None:
    check(range(part * EACH, (part + 1) * EACH))


@pytest.mark.chaos
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_many_schedules(part: int) -> None:
    first = 100_000 + part * LONG_EACH
    check(range(first, first + LONG_EACH))


def check(seeds: range) -> None:
    found = failures(seeds)
    for seed in list(found)[:1]:
        print("\n".join(play(seed, traced=True).trace[-400:]))
    assert not found, "".join(f"\npython -m tests.sim.replay {seed}: {what}" for seed, what in found.items())


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_a_seed_replays_exactly(hash_seed: str) -> None:
    """Also in another process, with another order of hashes."""
    env = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = [sys.executable, "-m", "tests.sim.replay", "7"]
    there = subprocess.run(run, env=env, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    here = play(7, traced=True)
    assert len(here.trace) > 50
    assert "\n".join(here.trace) in there.stdout
