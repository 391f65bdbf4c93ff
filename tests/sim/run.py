"""One run: build a deployment from a seed, let clients and nemesis at it, then stop the faults and look whether all comes right.

Rules: everything follows from the seed. After the faults stop, nobody asks anything for a while: what was accepted must run by itself.
Then a last message must be answered at once and run, every reader must have seen exactly the log, and nothing may be left over.
"""

from __future__ import annotations

import gc
import random
import sys
import traceback
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from types import ModuleType
from typing import Any

import orjson

import app.store.puts
import workers.runner
from app.core.cursor import START
from app.core.errors import ByreError, Unavailable
from app.log.log import Log
from app.log.recover import current
from app.store import keys
from tests.sim.clients import Clients, Lost
from tests.sim.harness import SimHost
from tests.sim.nemesis import Nemesis
from tests.sim.oracle import Oracle, waiting
from tests.sim.processes import PRINCIPAL, Deployment
from tests.sim.profile import draw
from tests.sim.reading import Reading
from tests.sim.scheduler import Wedged
from tests.sim.shims import replaced
from tests.sim.world import World

CLIENTS_SECONDS = 120.0
SETTLE_SECONDS = 300.0
PATCHED = ("app.log.", "app.services.", "app.store.puts", "app.store.trash", "workers.")
"""Modules whose clock, threads, chance and logger are simulated."""
Mutation = Callable[["Run"], AbstractContextManager[None]]


class SimLogger:
    """Log lines go into the trace; an error line is a bug that somebody noticed."""

    def __init__(self, world: World) -> None:
        self._w = world

    def bind(self, **_: Any) -> SimLogger:
        return self

    def _line(self, event: str, **fields: Any) -> None:
        self._w.note("", "log:", event, fields)

    debug = info = warning = _line

    def error(self, event: str, **fields: Any) -> None:
        self._w.violate(f"logged as an error: {event} {fields.get('why', fields.get('error', ''))}")

    def exception(self, event: str, **fields: Any) -> None:
        error = sys.exception()
        where = traceback.extract_tb(error.__traceback__)[-1] if error else None
        self._w.violate(f"{event}: {type(error).__name__} in {where and where.name}: {error}")


class Run:
    """The run of `seed`. After `play`, `violations` holds what was found (at most a few), `trace` its lines if `traced`."""

    def __init__(self, seed: int, traced: bool = False, mutation: Mutation | None = None) -> None:
        self.seed, self._mutation = seed, mutation
        rng = random.Random(seed)
        self.profile = draw(rng)
        self.world = World(rng, self.profile, traced)
        self.oracle = Oracle(self.world)
        self.deployment = Deployment(self.world, self.oracle)
        self.clients = Clients(self.world, self.deployment)
        self.nemesis = Nemesis(self.world, self.deployment, self.clients)
        self.phase = "faults"

    @property
    def violations(self) -> list[str]:
        return self.world.violations

    @property
    def trace(self) -> list[str]:
        return self.world.trace or []

    def play(self) -> Run:
        """Plays it to its end."""
        w = self.world
        enabled = gc.isenabled()
        gc.disable()  # a collection may end an old run's greenlets in the middle of this one
        with ExitStack() as stack:
            stack.enter_context(replaced(self._changes()))
            if self._mutation:
                stack.enter_context(self._mutation(self))
            w.outside.spawn(self._supervise, "supervisor")
            try:
                w.scheduler.run()
            except Wedged as error:
                w.violations.append(f"no end ({self.phase}): {error}")
            w.scheduler.close(w.processes)
        if enabled:
            gc.enable()
        return self

    def _changes(self) -> list[tuple[ModuleType | type, str, Any]]:
        w = self.world
        logger = SimLogger(w)
        stand_ins = {
            "time": w.time,
            "threading": w.threading,
            "random": w.rng,
            "logger": logger,
            "ThreadPoolExecutor": lambda *_, **__: w.executor,
        }
        modules = [module for name, module in sys.modules.items() if name.startswith(PATCHED)]
        out: list[tuple[ModuleType | type, str, Any]] = [(m, name, what) for m in modules for name, what in stand_ins.items()]
        return [*out, (app.store.puts, "log", logger), (workers.runner, "Host", SimHost)]

    def _supervise(self) -> None:
        w = self.world
        w.faulty = True
        self.deployment.start()
        self.clients.start()
        until = w.now + CLIENTS_SECONDS
        while self.clients.running and (w.now < until or w.now > until + 1000):
            w.scheduler.sleep(0.5)
            until = w.now + 20 if w.now > until + 1000 else until  # a day has passed
        self.phase = "settling"
        self.nemesis.heal()
        w.scheduler.sleep(2 * self.profile.lease + 2 * self.profile.sweep)
        if self._tail_of_a_dead_request() or self._unacknowledged():
            self._ask("flush", lambda api: api.sessions.flush(PRINCIPAL, self.clients.id))
        if not self._wait(self._settled, SETTLE_SECONDS):
            return w.violate(f"wedged: {self._where()}")
        self.phase = "probe"
        self._probe()
        w.scheduler.stop()
        return None

    def _wait(self, done: Callable[[], bool], seconds: float) -> bool:
        until = self.world.now + seconds
        while not done():
            if self.world.now > until:
                return False
            self.world.scheduler.sleep(0.5)
        return True

    def _settled(self) -> bool:
        """Nothing runs, nothing waits that may run, and everything is archived."""
        truth = self.clients.truth
        truth.refresh()
        state = truth.state
        live = self.deployment.server.look(self.clients.name.text)
        quiet = live is None or (live.arch == live.next and not live.worker)
        return quiet and not self.clients.running and state.turn is None and (not state.queue or state.status != "queued")

    def _tail_of_a_dead_request(self) -> bool:
        """An event that an API process appended and didn't live to archive: nobody waits for it, and the next archive takes it along."""
        live = self.deployment.server.look(self.clients.name.text)
        return live is not None and live.arch < live.next and not live.worker

    def _unacknowledged(self) -> bool:
        """An input that was never acknowledged, of a session that Redis has forgotten: nothing is promised until somebody asks for it."""
        waits = waiting(self.clients.truth.state)
        cold = self.deployment.server.look(self.clients.name.text) is None
        return cold and bool(waits) and not waits & self.oracle.acked.keys()

    def _where(self) -> str:
        truth = self.clients.truth
        look = self.deployment.server.look(self.clients.name.text)
        warm = f"{look.gen}/{look.arch}..{look.next} held by {look.worker or 'nobody'}" if look else "cold"
        turn = "a turn is open" if truth.state.turn else "no turn"
        return f"{truth.state.status}, {len(truth.state.queue)} wait, {turn}, Redis {warm}, {self.clients.running} clients left"

    # After the faults

    def _ask(self, what: str, ask: Callable[[Any], Any]) -> Any:
        """Without faults everything is answered, at the first try or soon."""
        for _ in range(5):
            try:
                return self.clients.call(ask)
            except (Lost, Unavailable):
                self.world.scheduler.sleep(2.0)
            except ByreError as error:
                self.world.violate(f"{what} was refused when all was quiet: {type(error).__name__}: {error}")
                return None
        self.world.violate(f"{what} was not answered although the faults were over")
        return None

    def _probe(self) -> None:
        w, c = self.world, self.clients
        if w.stalled_until > w.now:
            w.scheduler.sleep(w.stalled_until - w.now)
        if w.rng.random() < 0.2:
            # what Redis has forgotten must come back by itself as well
            self.deployment.server.flush()
            self.deployment.server.break_connections()
            w.scheduler.sleep(4 * self.profile.sweep + 2)
        if c.truth.state.status in ("interrupted", "failed"):
            self._ask("resume", lambda api: api.sessions.resume(PRINCIPAL, c.id))
            self._settle_again("resume")
        if w.violations:
            return
        if c.truth.state.status != "closed":
            shown = self._ask(
                "a message",
                lambda api: api.sessions.send(PRINCIPAL, c.id, {"type": "user.message", "text": "last", "key": "last"}),
            )
            if shown:
                self.oracle.acknowledged(c.name, shown)
                self._settle_again("a message")
                if not w.violations and not self.oracle.given.get(shown["id"]):
                    w.violate("the last message never ran")
            self._ask("flush", lambda api: api.sessions.flush(PRINCIPAL, c.id))
        if not w.violations:
            self._look_around()

    def _settle_again(self, why: str) -> None:
        if not self._wait(self._settled, SETTLE_SECONDS):
            self.world.violate(f"wedged after {why}: {self._where()}")
        elif self.clients.truth.state.status not in ("idle", "closed"):
            self.world.violate(f"{self.clients.truth.state.status} after {why} although the faults were over")

    def _look_around(self) -> None:
        w, c, truth = self.world, self.clients, self.clients.truth
        for reading in [*c.readings, Reading(w, truth, c.id)]:
            for _ in range(len(truth.facts) + 4):
                before = reading.cursor
                if not c.page(reading, 100):
                    w.violate("a page was not answered although the faults were over")
                if reading.cursor == before or w.violations:
                    break
            if not w.violations:
                reading.finish()
        for event_id, shown in self.oracle.acked.items():
            if event_id not in truth.ids and event_id not in truth.dropped:
                w.violate(f"an acknowledged input is not in the log: {shown['data'].get('text')}")
        look = self.deployment.server.look(c.name.text)
        if look and truth.state.status != "closed":
            from app.core.session import State

            if State.from_json(orjson.loads(look.state)) != truth.state or look.next != truth.head:
                w.violate("Redis has another state than the log when all is quiet")
        self._cold_look()
        pointer = orjson.loads(w.objects.get(keys.head_object(c.name)).body).get("checkpoint")
        last = truth.state.checkpoint
        if truth.state.status != "closed" and last and (pointer or {}).get("id") != last.id:
            w.violate("the checkpoint pointer is not the last one after a flush")
        self._leftovers()

    def _cold_look(self) -> None:
        """A process that knows nothing reads the same log, from the store alone."""
        w, c, truth = self.world, self.clients, self.clients.truth
        fresh = Log(w.objects, _Unreachable(), 1000, w.pace())  # type: ignore[arg-type]
        page = fresh.read(c.name, START, 10_000)
        if [(e.position.gen, e.position.offset, e.raw) for e in page.entries] != [
            (f.gen, f.offset, f.raw) for f in truth.facts
        ]:
            w.violate("the archive read by itself is not the log")
        state, _, head = current(fresh.segments, c.name, fresh.head(c.name).chain)
        if state != truth.state or head != truth.head:
            w.violate("the state that follows from the archive is not the log's")

    def _leftovers(self) -> None:
        """After one more loss of Redis the sweep has removed what is pending for nothing."""
        w, c, truth = self.world, self.clients, self.clients.truth
        if w.rng.random() > 0.2:
            return
        self.deployment.server.restart()
        self.deployment.server.break_connections()

        def clean() -> bool:
            found = w.objects.list(keys.pending_prefix(c.name.tenant))
            ids = {orjson.loads(w.objects.get(key).body)["id"] for key in found}
            return ids <= waiting(truth.state)

        if not self._wait(clean, 60.0):
            w.violate("pending objects are left of inputs that wait no more")


class _Unreachable:
    """A `Coord` that can't be reached."""

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any, **__: Any) -> Any:
            raise Unavailable("Redis can't be reached")

        return call


def play(seed: int, traced: bool = False, mutation: Mutation | None = None) -> Run:
    """The run of a seed, played."""
    return Run(seed, traced, mutation).play()


def failures(seeds: Iterable[int], mutation: Mutation | None = None) -> dict[int, str]:
    """Seeds whose runs break an invariant, and the first thing that they broke."""
    out = {}
    for seed in seeds:
        found = play(seed, mutation=mutation).violations
        if found:
            out[seed] = found[0]
    return out
