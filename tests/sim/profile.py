"""What one run is like: how fast, how faulty, how busy. Drawn from the seed, so that runs differ in kind and not only in order.

Rules: each fault is on in some runs and off in others (a fault that always happens hides what only happens without it).
"""

from __future__ import annotations

import dataclasses
import random

from app.store.faults import Fault

AIMS = ("loss_under_archive", "sleeper", "lost_create", "loss_under_pending")
STRIKES = (
    "crash",
    "crash_here",
    "pause",
    "pause_here",
    "flush",
    "restart",
    "rollback",
    "redis_down",
    "store_down",
    "skew",
    "recover_twice",
    "drain",
    "unsubscribe",
    "compact",
)
WRITE_FAULTS = (
    Fault.LOST_ANSWER,
    Fault.LOST_REQUEST,
    Fault.LATE,
    Fault.RACED,
    Fault.ERROR_BODY,
    Fault.SLOW_DOWN,
)
READ_FAULTS = (Fault.LOST_REQUEST, Fault.ERROR_BODY, Fault.SLOW_DOWN)


@dataclasses.dataclass
class Profile:
    """Rates are chances per call, latencies mean seconds per call."""

    apis: int
    workers: int
    lease: float
    sweep: float
    warm: float
    max_attempts: int
    caps: tuple[int, int]
    coord_latency: float
    store_latency: float
    stall: float
    store_faults: dict[Fault, float]
    coord_lost_request: float
    coord_lost_answer: float
    publish_lost: float
    publish_twice: float
    publish_delay: float
    strikes: dict[str, int]
    gap: int
    budget: int
    senders: int
    messages: int
    controls: int
    readers: int
    followers: int
    think: float
    outputs: int
    pace: float
    ends: dict[str, int]
    aim: str


def draw(rng: random.Random) -> Profile:
    """A profile."""
    some = rng.random
    faults = {f: rng.choice((0.01, 0.03, 0.1)) for f in WRITE_FAULTS if some() < 0.35}
    strikes = {s: rng.choice((1, 1, 3)) for s in STRIKES if some() < 0.45}
    crowd = some() < 0.01
    aim = rng.choices(("", *AIMS), (50, 12, 22, 6, 10))[0]
    busy = aim == "sleeper"
    lonely = aim == "loss_under_pending"  # whoever else asks for something recovers the session by that
    return Profile(
        apis=rng.choice((2, 3)) if busy else rng.choice((1, 2, 2, 3)),
        workers=20 if crowd else rng.choice((1, 2, 2, 3)),
        lease=rng.choice((3.0, 5.0, 8.0)),
        sweep=rng.choice((1.0, 2.5)),
        warm=rng.choice((0.0, 2.0, 10.0)),
        max_attempts=rng.choice((2, 3, 5)),
        caps=rng.choice(((1, 1), (2, 1), (8, 8))),
        coord_latency=rng.choice((0.001, 0.005, 0.02)),
        store_latency=rng.choice((0.005, 0.02, 0.08)),
        stall=rng.choice((0.0, 0.0, 0.005, 0.02)),
        store_faults=faults,
        coord_lost_request=rng.choice((0.0, 0.0, 0.01, 0.04)),
        coord_lost_answer=rng.choice((0.0, 0.0, 0.01, 0.04)),
        publish_lost=rng.choice((0.0, 0.0, 0.1)),
        publish_twice=rng.choice((0.0, 0.0, 0.1)),
        publish_delay=rng.choice((0.001, 0.02, 0.3)),
        strikes=strikes,
        gap=rng.choice((25, 60, 150)),
        budget=rng.choice((0, 1, 2, 4, 8)) if strikes else 0,
        senders=3 if busy else 1 if crowd or lonely else rng.choice((1, 2, 3)),
        messages=2 if busy else 1 if lonely else rng.choice((1, 2, 3)),
        controls=0 if lonely else rng.choice((0, 1, 1, 2)),
        readers=rng.choice((1, 2)),
        followers=rng.choice((0, 1)),
        think=0.05 if busy else rng.choice((0.05, 0.5, 2.0)),
        outputs=rng.choice((0, 1, 3)),
        pace=rng.choice((0.01, 0.1, 0.8)),
        ends=rng.choice(
            (
                {"done": 1},
                {"done": 6, "failed": 1, "limited": 1, "exit": 1, "hang": 1},
                {"done": 2, "limited": 1},
                {"done": 2, "hang": 1, "exit": 1},
            )
        ),
        aim=aim,
    )
