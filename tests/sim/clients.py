"""Clients of a simulated deployment: they send, steer, interrupt, restore and read, and try again as a sensible client does.

Rules: a client never dies; what it asks runs in an API process that may. What it is answered goes to the oracle at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from app.core import cursor
from app.core.cursor import Position
from app.core.errors import ByreError, Conflict, CursorUnavailable, Missing, Overloaded, Unavailable
from app.store.keys import LogName
from tests.sim.oracle import waiting
from tests.sim.processes import PRINCIPAL, TENANT, Api, Deployment
from tests.sim.reading import Reading
from tests.sim.scheduler import Killed
from tests.sim.world import World

T = TypeVar("T")
TRIES = 12
PATIENCE = 30.0
ENDLESS = 1e6
"""Some clients wait as long as it takes."""
BODY = {"harness": "script", "config": {"model": "m", "tools": []}}


class Lost(Exception):
    """The connection broke, or no answer came."""


class Clients:
    """All clients of one session."""

    def __init__(self, world: World, deployment: Deployment) -> None:
        self.w, self.d = world, deployment
        self.name = LogName("", None)
        self.running = 0
        self.results: dict[str, tuple[str, int]] = {}
        """Key -> event id as it was acknowledged first, and how many restores there had been."""
        self.readings: list[Reading] = []
        self._number = 0

    @property
    def truth(self) -> Any:
        return self.d.oracle.truths[self.name.text]

    @property
    def id(self) -> str:
        return self.name.session or ""

    def start(self) -> None:
        """Creates the session, and starts everybody."""
        p = self.w.profile
        while True:
            try:
                self.name = LogName(TENANT, self.call(lambda api: api.sessions.create(PRINCIPAL, BODY))["id"])
                break
            except (Lost, Unavailable):
                self.w.scheduler.sleep(0.5)
        self.d.oracle.session(self.name)
        self.w.note("", "SESSION", self.id)
        for _ in range(p.senders):
            self._spawn(self._send_some, "sender")
        for _ in range(p.controls):
            self._spawn(self._control, "control")
        for _ in range(p.readers):
            self._spawn(self._read, "reader")
        for _ in range(p.followers):
            self._spawn(self._follow, "follower")

    def call(self, ask: Callable[[Api], T], patience: float = PATIENCE) -> T:
        """What an API process answers. Raises ByreError, Lost."""
        if self.w.profile.aim == "sleeper":
            patience = ENDLESS
        apis = [a for a in self.d.apis if a.alive and a.sessions]
        if not apis:
            self.w.scheduler.sleep(0.3)
            raise Lost
        api = self.w.rng.choice(apis)
        box: list[Any] = []

        def run() -> None:
            try:
                box.append((ask(api), None))
            except ByreError as error:
                box.append((None, error))

        task = api.process.spawn(run, "request")
        self.w.scheduler.join(task, patience)
        if task.error:
            self.w.violate(f"a request failed: {type(task.error).__name__}: {task.error}")
        if not box:
            raise Lost
        answer, error = box[0]
        if error:
            if not isinstance(error, Conflict | Unavailable | Overloaded | Missing):
                self.w.violate(f"a client was answered {type(error).__name__}: {error}")
            raise error
        return answer  # type: ignore[no-any-return]

    def _spawn(self, what: Callable[[], None], name: str) -> None:
        self.running += 1

        def run() -> None:
            what()
            self.running -= 1

        self.w.outside.spawn(run, name)

    def _think(self) -> None:
        self.w.scheduler.sleep(self.w.rng.random() * 2 * self.w.profile.think)

    # Sending

    def _send_some(self) -> None:
        rng = self.w.rng
        for _ in range(self.w.profile.messages):
            self._think()
            self._number += 1
            body: dict[str, Any] = {"type": "user.message", "text": f"m{self._number}"}
            if rng.random() < 0.85:
                body["key"] = f"k{self._number}"
            if rng.random() < 0.3:
                body["delivery"] = rng.choice(("interrupt", "steer"))
            if "key" in body and rng.random() < 0.2:
                self._spawn(lambda body=body: self.send(body), "twin")
            taken = self.send(body)
            if "key" in body and rng.random() < 0.1 and taken:  # else the other body is the first one, and taken
                self.send({**body, "text": "another"}, other=True)

    def send(self, body: dict[str, Any], other: bool = False) -> dict[str, Any] | None:
        """Sends until it is acknowledged; None if the session doesn't take it. `other`: a known key with another body."""
        key = body.get("key")
        fresh = key is not None and key not in self.results
        floor, restores = self._floor(), self.truth.restores
        for attempt in range(TRIES):
            known = self.results.get(key) if key else None
            dropped = known is not None and known[0] in self.truth.dropped
            try:
                shown = self.call(lambda api: api.sessions.send(PRINCIPAL, self.id, body))
            except (Lost, Unavailable, Overloaded):
                if key is None:
                    return None
                self.w.scheduler.sleep(self.w.rng.random() * min(8.0, 0.2 * 2**attempt))
                continue
            except Missing:
                self.w.violate("the session is not found")
                return None
            except Conflict as error:
                if other:
                    return None
                if known and not dropped and known[0] not in self.truth.dropped:
                    self.w.violate(f"a retry of an acknowledged input was refused: {error}")
                if "closed" in error.message or self.truth.state.status == "closed":
                    return None
                self._resume()
                continue
            self.w.note("", "ACK", body, shown["id"])
            self._acknowledged(key, shown, other)
            offset = cursor.decode(self.id, shown["cursor"]).offset
            if fresh and restores == self.truth.restores and offset <= floor:
                self.w.violate("inputs are not in the order in which they were acknowledged")
            if self.w.rng.random() < 0.3:
                self._ask_status(shown["id"])
            return shown
        return None

    def _acknowledged(self, key: str | None, shown: dict[str, Any], other: bool) -> None:
        self.d.oracle.acknowledged(self.name, shown)
        if key is None:
            return
        first = key not in self.results
        known = self.results.setdefault(key, (shown["id"], self.truth.restores))
        if known[0] in self.truth.dropped:
            self.results[key] = (shown["id"], self.truth.restores)
        elif known[0] != shown["id"] and shown["id"] not in self.truth.dropped:
            self.w.violate("one key has two results")
        elif other and not first and known[0] == shown["id"]:
            self.w.violate("another body under a known key was taken for the same input")

    def _floor(self) -> int:
        ids = self.truth.ids
        places = [cursor.decode(self.id, e["cursor"]).offset for i, e in self.d.oracle.acked.items() if i in ids]
        return max(places, default=-1)

    def _ask_status(self, event_id: str) -> None:
        since = {event_id} if event_id in waiting(self.truth.state) else set()
        try:
            state = self.call(lambda api: api.log.state(self.name))
        except (Lost, ByreError):
            return
        self.d.oracle.known(self.name, state, since)

    # Controlling

    def _control(self) -> None:
        rng = self.w.rng
        for _ in range(rng.randint(1, 5)):
            self._think()
            what = rng.choice(
                (self._interrupt, self._withdraw, self._resume, self._restore, self._restore, self._flush, self._get)
            )
            if rng.random() < 0.03:
                what = self.close
            try:
                what()
            except (Lost, Unavailable, Overloaded):
                continue

    def _interrupt(self) -> None:
        key = {"key": "i" + self.w.token()} if self.w.rng.random() < 0.5 else {}
        try:
            self.call(lambda api: api.sessions.send(PRINCIPAL, self.id, {"type": "user.interrupt", **key}))
        except Conflict as error:
            self.w.violate(f"an interrupt was refused: {error}")

    def _withdraw(self) -> None:
        queue = self.truth.state.queue
        if not queue:
            return
        event_id = self.w.rng.choice(queue).id
        try:
            self.call(lambda api: api.sessions.withdraw(PRINCIPAL, self.id, event_id))
        except Conflict:
            return
        self.d.oracle.withdrawn.add(event_id)
        if event_id in waiting(self.truth.state):
            self.w.violate("a withdrawn input still waits")

    def _resume(self) -> None:
        try:
            self.call(lambda api: api.sessions.resume(PRINCIPAL, self.id))
        except (Conflict, Lost, Unavailable):
            return

    def _restore(self) -> None:
        known = [data["checkpoint"] for data in self.truth.settled.values() if data.get("checkpoint")]
        if not known:
            return
        ckpt, before = self.w.rng.choice(known), len(self.truth.chain)
        try:
            self.call(lambda api: api.sessions.restore(PRINCIPAL, self.id, ckpt))
        except Conflict:
            return
        except Missing:
            self.w.violate("a checkpoint is not found")
            return
        if all(g.restored != ckpt for g in self.truth.chain[before:]):
            self.w.violate("a restore was answered that didn't happen")

    def _flush(self) -> None:
        self.call(lambda api: api.sessions.flush(PRINCIPAL, self.id))

    def _get(self) -> None:
        self.call(lambda api: api.sessions.get(PRINCIPAL, self.id))
        self.call(lambda api: api.sessions.sync(PRINCIPAL, self.id))

    def close(self) -> None:
        """Ends the session."""
        self.call(lambda api: api.sessions.close(PRINCIPAL, self.id))
        if self.truth.state.status != "closed":
            self.w.violate("a session was answered to be closed that isn't")

    # Reading

    def _read(self) -> None:
        reading = Reading(self.w, self.truth, self.id)
        self.readings.append(reading)
        for _ in range(self.w.rng.randint(2, 12)):
            self._think()
            self.page(reading, self.w.rng.choice((1, 3, 100)))

    def page(self, reading: Reading, limit: int) -> bool:
        """Reads a page; whether there was an answer."""
        reading.ask()
        after = reading.cursor
        try:
            page = self.call(lambda api: api.sessions.events(PRINCIPAL, self.id, after, limit))
        except CursorUnavailable as error:
            reading.refused(cursor.decode(self.id, error.earliest))
            return True
        except (Lost, Unavailable):
            return False
        except Missing:
            self.w.violate("the session is not found")
            return False
        reading.paged(page["events"], page["next_cursor"])
        return True

    def _follow(self) -> None:
        reading = Reading(self.w, self.truth, self.id)
        self.readings.append(reading)
        for _ in range(self.w.rng.randint(1, 4)):
            self._think()
            reading.ask()
            until = self.w.now + self.w.rng.random() * 10
            after, open_ = reading.cursor, [True]
            try:
                self.call(
                    lambda api, after=after, until=until, open_=open_: self._stream(api, reading, after, until, open_), 60.0
                )
            except CursorUnavailable as error:
                reading.refused(cursor.decode(self.id, error.earliest))
            except (Lost, Unavailable):
                continue
            finally:
                open_.clear()

    def _stream(self, api: Api, reading: Reading, after: str | None, until: float, open_: list[bool]) -> None:
        follower = api.sessions.stream(PRINCIPAL, self.id, after)  # type: ignore[union-attr]
        try:
            while self.w.now < until:
                for entry in follower.entries(1.0):
                    if not api.alive:
                        raise Killed
                    if not open_:
                        return  # the client has hung up
                    reading.delivered(Position(*entry.position), entry.raw)
        except EOFError:
            return
        finally:
            if api.alive:
                follower.close()
