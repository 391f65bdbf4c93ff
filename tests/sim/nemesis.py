"""What happens to a deployment: processes die and stall, Redis forgets, clocks jump, days pass.

Rules: strikes are counted in calls, not in time, so that each call of anybody is as likely to be hit as any other.
"""

from __future__ import annotations

from typing import Any

from app.coord.fake_memory import Memory
from app.core.errors import ByreError, Unavailable
from app.store.contract import StoreError
from tests.sim.aims import A_DAY, Aims
from tests.sim.clients import Clients
from tests.sim.processes import Deployment, Part
from tests.sim.scheduler import Task
from tests.sim.world import World

KEPT = 6


class Nemesis:
    """Strikes as the profile says. `active` until the faults are to stop."""

    def __init__(self, world: World, deployment: Deployment, clients: Clients) -> None:
        self._w, self._d, self._c = world, deployment, clients
        self._left = world.profile.budget
        self._wait = self._next()
        self._snapshots: list[Memory] = []
        self._aims = Aims(world, deployment, self._act)
        world.strike = self.tick

    def _next(self) -> int:
        return int(self._w.rng.expovariate(1 / self._w.profile.gap)) + 1

    def tick(self, task: Task) -> None:
        """A call of `task` is on its way."""
        rng, strikes = self._w.rng, self._w.profile.strikes
        if "rollback" in strikes and rng.random() < 0.04:
            self._snapshots = [*self._snapshots[1 - KEPT :], self._d.server.snapshot()]
        if not self._left:
            return
        self._wait -= 1
        if self._wait > 0:
            return
        self._wait = self._next()
        self._left -= 1
        kind = rng.choices(list(strikes), list(strikes.values()))[0]
        getattr(self, f"_{kind}")(task)

    def heal(self) -> None:
        """The faults are over: what is paused goes on, what is dead is replaced."""
        w = self._w
        w.note("NEMESIS", "heals")
        w.faulty = False
        w.redis_down_until = w.store_down_until = 0.0
        for part in self._d.parts:
            if part.process.paused_until > w.now:
                w.later(w.rng.random() * 2, part.process.resume, "resume")
        w.later(4.0, self._d.replace, "replace")

    def _some(self) -> Part | None:
        parts = [p for p in self._d.parts if p.alive]
        return self._w.rng.choice(parts) if parts else None

    def _crash(self, _: Task) -> None:
        part = self._some()
        if part:
            self._d.crash(part)

    def _crash_here(self, task: Task) -> None:
        part = self._d.part(task.process)
        if part:
            self._d.crash(part)

    def _pause(self, _: Task) -> None:
        part = self._some()
        if part:
            self._stall(part)

    def _pause_here(self, task: Task) -> None:
        part = self._d.part(task.process)
        if part:
            self._stall(part)

    def _stall(self, part: Part) -> None:
        w = self._w
        seconds = w.rng.random() * w.rng.choice((1.0, w.profile.lease, 3 * w.profile.lease))
        part.process.paused_until = w.now + seconds
        w.note("NEMESIS", "pause", part.process.name, f"{seconds:.2f}")

    def _flush(self, _: Task) -> None:
        self._w.note("NEMESIS", "flush")
        self._d.server.flush()

    def _restart(self, _: Task) -> None:
        self._w.note("NEMESIS", "restart")
        self._d.server.restart()
        self._d.server.break_connections()

    def _rollback(self, _: Task) -> None:
        if not self._snapshots:
            return
        old = self._w.rng.choice(self._snapshots)
        self._w.note("NEMESIS", "rollback", {log: (k.gen, k.next, k.status) for log, k in old.logs.items()})
        self._d.server.rollback(old)
        self._d.server.break_connections()
        self._d.oracle.rolled_back({log: k.state for log, k in old.logs.items()})

    def _redis_down(self, _: Task) -> None:
        w = self._w
        seconds = w.rng.random() * w.rng.choice((1.0, 10.0, 60.0))
        w.note("NEMESIS", "redis down", f"{seconds:.2f}")
        w.redis_down_until = w.now + seconds
        self._d.server.break_connections()

    def _store_down(self, _: Task) -> None:
        w = self._w
        seconds = w.rng.random() * w.rng.choice((1.0, 5.0, 30.0))
        w.note("NEMESIS", "store down", f"{seconds:.2f}")
        w.store_down_until = w.now + seconds

    def _skew(self, _: Task) -> None:
        part = self._some()
        if part:
            part.process.skew += self._w.rng.choice((-1, 1)) * self._w.rng.choice((0.5, 30.0, 86_400.0))
            self._w.note("NEMESIS", "clock jumps", part.process.name, part.process.skew)

    def _recover_twice(self, _: Task) -> None:
        if not self._c.name.session:
            return
        fenced = self._w.rng.choice((None, self._c.truth.chain[-1].gen))
        for _ in range(2):
            part = self._some()
            if part:
                self._do(part, "recover", lambda part=part: part.log.recovery.recover(self._c.name, fenced=fenced))

    def _drain(self, _: Task) -> None:
        workers = [p for p in self._d.workers if p.alive]
        if workers:
            self._d.drain(self._w.rng.choice(workers))

    def _unsubscribe(self, _: Task) -> None:
        part = self._some()
        if part:
            self._w.note("NEMESIS", "breaks subscription", part.process.name)
            part.subscription.break_off()

    def _compact(self, task: Task) -> None:
        """Compaction, and sometimes a day later what it has left is deleted, while somebody sleeps over it."""
        w, part = self._w, self._some()
        if not part or not self._c.name.session:
            return
        self._act(part, "compact")
        if w.rng.random() < 0.5:
            w.later(w.rng.random() * 3, self._a_day, "day")

    def _a_day(self) -> None:
        w, sleeper, cleaner = self._w, self._some(), self._some()
        if not w.faulty or not cleaner:
            return
        w.note("NEMESIS", "a day passes")
        w.scheduler.now += A_DAY
        if sleeper and sleeper is not cleaner:
            sleeper.process.paused_until = w.now + 5 + w.rng.random() * 20
            w.note("NEMESIS", "pause", sleeper.process.name, "over the day")
        self._act(cleaner, "collect")

    def _act(self, part: Part, what: str) -> None:
        """Makes a part do something with the session."""
        name = self._c.name
        acts = {
            "compact": lambda: part.compact(name),
            "collect": lambda: part.collect(name),
            "recover": lambda: part.log.recovery.recover(name),
        }
        self._do(part, what, acts[what])

    def _do(self, part: Part, name: str, what: Any) -> None:
        self._w.note("NEMESIS", name, part.process.name)

        def run() -> None:
            try:
                what()
            except (Unavailable, StoreError):
                return
            except ByreError as error:
                self._w.violate(f"{name} met {type(error).__name__}: {error}")

        part.process.spawn(run, name)
