"""One run's world: the object store, Redis, the clock, the trace, and the gate that every call of anybody passes.

Rules: a call waits for its latency, then the nemesis may strike, then it may fail, then it happens. Everything random comes from one
generator. What breaks an invariant is a violation; the first one ends the run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

from app.store.memory import MemoryStore
from app.store.puts import Pace
from tests.sim.profile import Profile
from tests.sim.scheduler import Killed, Process, Scheduler, Task
from tests.sim.shims import EPOCH, Executor, Threading, Time

MAX_STEPS = 60_000


class World:
    """`objects` is what the store really holds, `redis` the server; `violations` what was found."""

    def __init__(self, rng: random.Random, profile: Profile, traced: bool) -> None:
        self.rng, self.profile = rng, profile
        self.scheduler = Scheduler(rng, MAX_STEPS)
        self.scheduler.on_error = self._unexpected
        self.time = Time(self.scheduler)
        self.threading = Threading(self.scheduler)
        self.executor = Executor(self.scheduler)
        self.objects = MemoryStore()
        self.processes: list[Process] = []
        self.outside = self.process("outside")
        self.violations: list[str] = []
        self.stalled_until = 0.0  # a call that began before the faults were over may hang until then
        self.faulty = False
        self.strike: Callable[[Task], None] | None = None
        self.aims: Any = None
        self.calls = 0
        self.redis_down_until = 0.0
        self.store_down_until = 0.0
        self.trace: list[str] | None = [] if traced else None
        self.facts: list[str] = []
        """What happened that matters to what is expected, e.g. that a fault of some kind was played at all."""

    def process(self, name: str) -> Process:
        """A new process."""
        process = Process(self.scheduler, name)
        self.processes.append(process)
        return process

    @property
    def now(self) -> float:
        return self.scheduler.now

    def now_ms(self) -> int:
        """The clock of the Redis server."""
        return int((EPOCH + self.scheduler.now) * 1000)

    def gate(self, process: Process, mean: float) -> None:
        """A call is on its way. Raises Killed."""
        rng = self.rng
        wait = rng.random() * 2 * mean
        if self.faulty and rng.random() < self.profile.stall:
            wait += rng.random() * 15
            self.stalled_until = max(self.stalled_until, self.now + wait)
        self.scheduler.sleep(wait)
        self.calls += 1
        if self.faulty and self.strike:
            task = self.scheduler.current
            assert task
            self.strike(task)
            if not process.alive:
                raise Killed
            if process.paused_until > self.now:
                self.scheduler.sleep(0.0)

    def chance(self, rate: float) -> bool:
        """Whether a fault of this rate happens now."""
        return self.faulty and rate > 0 and self.rng.random() < rate

    def later(self, seconds: float, what: Callable[[], Any], name: str) -> None:
        """Happens `seconds` later, whoever lives then."""

        def run() -> None:
            self.scheduler.sleep(seconds)
            what()

        self.outside.spawn(run, name)

    def note(self, who: str, what: str, *args: object) -> None:
        """A line of the trace."""
        if self.trace is not None:
            task = self.scheduler.current
            where = who or (f"{task.process.name}/{_ID.sub('', task.name)}" if task else "-")
            self.trace.append(f"{self.scheduler.now:9.3f} {where:<20} {_short(what)} " + " ".join(map(_short, args)))

    def violate(self, what: str) -> None:
        """An invariant doesn't hold: the run ends."""
        self.violations.append(what)
        self.note("", "VIOLATION", what)
        self.scheduler.stop()

    def token(self) -> str:
        """A put-id or id."""
        return f"{self.rng.getrandbits(64):016x}"

    def pace(self) -> Pace:
        """Time and chance for the code under test."""
        return Pace(self.time.monotonic, self.scheduler.sleep, self.rng.random, self.token)

    def _unexpected(self, task: Task, error: Exception) -> None:
        import traceback

        where = traceback.extract_tb(error.__traceback__)[-1]
        self.violate(f"{task.process.name.rstrip('0123456789')}: {type(error).__name__} escaped from {where.name}: {error}")


_ID = re.compile(r"\b[0-9a-f]{28}([0-9a-f]{4})\b|\b[0-9a-f]{60}([0-9a-f]{4})\b")
_ZEROS = re.compile(r"\b0{4,}(?=[0-9])")


def _short(value: object) -> str:
    """Long ids are cut to the last four characters, which tell them apart well enough."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    text = _ID.sub(lambda m: "~" + (m[1] or m[2]), _ZEROS.sub("", text)).replace("tenants/acme/", "").replace("sessions/", "")
    return text if len(text) <= 160 else text[:157] + "..."
