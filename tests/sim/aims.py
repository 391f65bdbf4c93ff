"""Strikes aimed at calls in flight: what random strikes would hit too seldom, because several things must come together.

Each is a schedule in which one rule of the protocol is all that stands between a client and a loss:

- `loss_under_archive`: a segment is on its way when Redis loses everything and somebody else recovers; it lands after that. Only the
  fence tells its writer that what it has archived is no part of the log any more.
- `sleeper`: two processes archive from the same head. The one with more falls asleep before its PUT, the one with less lands, Redis
  loses the rest. What has landed is compacted and a day later deleted, so the key is free when the sleeper goes on and its PUT succeeds.
- `loss_under_pending`: an input's pending object is on its way when Redis loses everything, and the sweep looks for what is pending
  before it lands. Only whoever acknowledges the input can see that nobody will run it.
- `lost_create`: a session is created, and the answer of the store is lost.

Rules: as for every strike, it depends on the seed alone, and ends with the faults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from app.log.segment import is_fence
from app.store import keys
from tests.sim.processes import Api, Deployment, Part
from tests.sim.scheduler import Process
from tests.sim.world import World

A_DAY = 90_000.0
LONG = 10 * A_DAY
ROUNDS = 12
"""How often the sleeper's schedule looks whether the log was compacted."""


def is_small(key: str) -> bool:
    """Whether this is the place of a segment that an archiver writes, or of a fence."""
    return "/log/" in key and "/trash/" not in key


class Aims:
    """What the profile aims at. `act` makes a part "recover", "compact" or "collect" the session."""

    def __init__(self, world: World, deployment: Deployment, act: Callable[[Part, str], None]) -> None:
        self._w, self._d, self._act = world, deployment, act
        self._left = 1 if world.profile.aim else 0
        self._flying: dict[str, list[tuple[Process, int]]] = {}
        self._awaited: tuple[str, Process, Part] | None = None
        world.aims = self

    def entering(self, process: Process, key: str, body: bytes) -> None:
        """A PUT of `process` is on its way."""
        aim = self._w.profile.aim
        if not self._w.faulty or not self._left:
            return
        part = self._d.part(process)
        if part is None:
            return
        if aim == "loss_under_pending" and "/pending/" in key:
            self._loss_under_pending(key)
        if aim not in ("loss_under_archive", "sleeper") or not is_small(key) or is_fence(body):
            return
        if aim == "loss_under_archive":
            self._loss_under_archive(part)
        else:
            self._race(part, key, orjson.loads(body.partition(b"\n")[0])["count"])

    def landed(self, process: Process, key: str, done: bool) -> None:
        """A PUT has happened, or (not `done`) was refused."""
        flying = self._flying.get(key)
        if flying:
            self._flying[key] = [each for each in flying if each[0] is not process]
        if self._awaited and self._awaited[:2] == (key, process):
            sleeper, self._awaited = self._awaited[2], None
            if done and self._w.faulty:
                self._w.outside.spawn(lambda: self._over_the_day(sleeper, key), "sleeper")
                self._lose()
            else:
                self._again(sleeper)

    def answer_lost(self, key: str) -> bool:
        """Whether the answer to this write, which has happened, is to be lost."""
        if not self._left or self._w.profile.aim != "lost_create" or not key.endswith("/session.json"):
            return False
        self._left = 0
        return True

    def _lose(self) -> None:
        if self._w.rng.random() < 0.5:
            self._d.server.flush()
        else:
            self._d.server.restart()
            self._d.server.break_connections()
        self._w.note("NEMESIS", "Redis loses a tail that is being archived")

    def _other(self, part: Part) -> Part | None:
        others = [p for p in self._d.parts if p.alive and p is not part and p.process.paused_until <= self._w.now]
        return self._w.rng.choice(others) if others else None

    def _loss_under_archive(self, part: Part) -> None:
        w, other = self._w, self._other(part)
        if other is None or w.rng.random() < 0.7:
            return
        self._left -= 1
        part.process.paused_until = w.now + 0.3 + w.rng.random() * 5
        self._lose()
        w.note("NEMESIS", "pause", part.process.name, "with a segment in flight")
        self._act(other, "recover")

    def _loss_under_pending(self, key: str) -> None:
        w = self._w
        if w.objects.list(keys.pending_prefix(keys.parse_pending(key).tenant)):
            return  # the session is found by another input
        self._left -= 1
        archived = 0.2 + w.rng.random() * 0.5
        w.later(archived, self._lose, "loss")
        w.note("NEMESIS", "a pending object is slow")
        w.scheduler.sleep(archived + (1.5 + w.rng.random()) * w.profile.sweep)

    # The sleeper

    def _race(self, part: Part, key: str, count: int) -> None:
        place = keys.parse_segment(key)
        if self._generation(key)["start"] >= place.offset:
            return  # alone in its generation, it would never be compacted
        flying = self._flying.setdefault(key, [])
        flying[:] = [(p, n) for p, n in flying if p.alive and p is not part.process]
        for process, other_count in flying:
            other = self._d.part(process)
            longer, shorter = (part, process) if count > other_count else (other, part.process)
            if other and count != other_count and isinstance(longer, Api):
                self._left = 0
                self._awaited = (key, shorter, longer)
                longer.process.paused_until = self._w.now + LONG
                self._w.note("NEMESIS", "pause", longer.process.name, "with the longer of two segments")
                self._w.later(20.0, lambda sleeper=longer: self._give_up(sleeper), "give up")
                return
        flying.append((part.process, count))

    def _give_up(self, sleeper: Part) -> None:
        if self._awaited and self._awaited[2] is sleeper:
            self._awaited = None
            self._again(sleeper)

    def _again(self, sleeper: Part) -> None:
        self._left = 1
        sleeper.process.resume()

    def _over_the_day(self, sleeper: Part, key: str) -> None:
        """Until the key is free, or it doesn't come to that."""
        w = self._w
        place = keys.parse_segment(key)
        for _ in range(ROUNDS):
            w.scheduler.sleep(0.5 + w.rng.random() * 2)
            if not w.faulty or not sleeper.alive:
                break
            if self._generation(key)["boundary"] > place.offset:
                self._tidy(sleeper, "collect")
                w.note("NEMESIS", "a day passes")
                w.scheduler.now += A_DAY
                self._tidy(sleeper, "collect")
                w.scheduler.sleep(3.0)
                break
            self._tidy(sleeper, "compact")
        w.note("NEMESIS", "wakes", sleeper.process.name)
        sleeper.process.resume()

    def _tidy(self, sleeper: Part, what: str) -> None:
        other = self._other(sleeper)
        if other:
            self._act(other, what)

    def _generation(self, key: str) -> dict[str, Any]:
        place = keys.parse_segment(key)
        doc: dict[str, Any] = orjson.loads(self._w.objects.get(keys.head_object(place.log)).body)
        return next(g for g in doc["chain"] if g["gen"] == place.gen)
