"""Redis as one process sees it: calls that may be lost either way, and a subscription that may lose, repeat and delay."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from app.coord.coord import Answer, Appended, Holder, Seed
from app.coord.fake import FakeCoord
from app.core.errors import Unavailable
from app.log import events
from tests.sim.oracle import Oracle
from tests.sim.scheduler import Process
from tests.sim.shims import Condition
from tests.sim.world import World

BEAT_SECONDS = 5.0


class Server(FakeCoord):
    """The one server; what it does is shown to the oracle."""

    def __init__(self, world: World, oracle: Oracle) -> None:
        super().__init__(world.now_ms, self._published)
        self._world, self._oracle = world, oracle
        self.subscriptions: list[SimSubscription] = []

    def _published(self, channel: str, body: bytes) -> None:
        for each in self.subscriptions:
            each.arrived(channel, body)

    def append(self, log: str, events: Any, **how: Any) -> Appended:
        done = super().append(log, events, **how)
        if done.answer is Answer.OK:
            self._oracle.appended(log, self.memory.logs[log], done, events, how.get("change"))
        return done

    def seed(self, log: str, seed: Seed) -> Answer:
        answer = super().seed(log, seed)
        if answer is Answer.OK:
            self._oracle.seeded(log, seed)
        return answer

    def activate(self, log: str, holder: Holder, lease_ms: int) -> Answer:
        answer = super().activate(log, holder, lease_ms)
        if answer is Answer.OK:
            self._oracle.activated(log, holder)
        return answer

    def break_connections(self) -> None:
        """All subscriptions lose their connection."""
        for each in self.subscriptions:
            each.break_off()


class SimCoord:
    """A `Coord` for `process`."""

    def __init__(self, world: World, process: Process, server: Server) -> None:
        self._w, self._process, self._server = world, process, server

    def channel(self, log: str) -> str:
        return self._server.channel(log)

    @property
    def wake_channel(self) -> str:
        return self._server.wake_channel

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(name, args, kwargs)

        self.__dict__[name] = call
        return call

    def _call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        w = self._w
        w.gate(self._process, w.profile.coord_latency)
        if w.redis_down_until > w.now:
            w.scheduler.sleep(w.rng.random() * 0.5)
            raise Unavailable("Redis can't be reached")
        if w.chance(w.profile.coord_lost_request):
            w.note("", name, "LOST_REQUEST")
            raise Unavailable("Redis can't be reached")
        answer = getattr(self._server, name)(*args, **kwargs)
        if w.trace is not None:
            w.note("", name, *_args(name, args, kwargs), "->", _answer(name, answer))
        if w.chance(w.profile.coord_lost_answer):
            w.note("", name, "LOST_ANSWER")
            raise Unavailable("Redis can't be reached")
        if w.rng.random() < 0.1:
            w.scheduler.sleep(w.rng.random() * 2 * w.profile.coord_latency)
        return answer


class SimSubscription:
    """What `app.log.subscription.Subscription` is to a hub."""

    def __init__(self, world: World, process: Process, server: Server) -> None:
        self._w, self._process, self._server = world, process, server
        self._channels: set[str] = set()
        self._inbox: deque[tuple[str, bytes]] = deque()
        self._changed = Condition(world.scheduler)
        self._up_at = 0.0
        self.connected = False
        server.subscriptions.append(self)

    def start(self, message: Callable[[str, bytes], None], beat: Callable[[], None], connected: Callable[[], None]) -> None:
        self._message, self._beat, self._on_connected = message, beat, connected
        self._process.spawn(self._run, "hub")

    def subscribe(self, channel: str) -> None:
        self._channels.add(channel)

    def confirmed(self, _: None) -> None:
        self._w.scheduler.sleep(self._w.rng.random() * 0.01)

    def unsubscribe(self, channel: str) -> None:
        self._channels.discard(channel)

    def close(self) -> None:
        self._channels.clear()
        if self in self._server.subscriptions:
            self._server.subscriptions.remove(self)

    def break_off(self) -> None:
        """The connection is lost, with all that was on it."""
        self.connected = False
        self._inbox.clear()
        self._up_at = self._w.now + self._w.rng.random() * 2
        self._changed.notify_all()

    def arrived(self, channel: str, body: bytes) -> None:
        """The server has published something."""
        w = self._w
        if not self.connected or channel not in self._channels or not self._process.alive:
            return
        if w.chance(w.profile.publish_lost):
            return
        self._inbox.append((channel, body))
        if w.chance(w.profile.publish_twice):
            self._inbox.insert(w.rng.randrange(len(self._inbox)), (channel, body))
        self._changed.notify_all()

    def _run(self) -> None:
        w = self._w
        while True:
            if not self.connected:
                wait = max(self._up_at, w.redis_down_until) - w.now
                if wait > 0:
                    w.scheduler.sleep(wait + 0.01)
                    continue
                self.connected = True
                self._on_connected()
            if not self._changed.wait_for(lambda: self._inbox or not self.connected, BEAT_SECONDS):
                self._beat()
            elif self._inbox:
                w.scheduler.sleep(w.rng.random() * 2 * w.profile.publish_delay)
                if self._inbox:
                    self._message(*self._inbox.popleft())


def _args(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    if name == "append":
        kinds = [f"{events.kind_of(e) if e else '-'}:{i[-4:]}" for i, e in args[1]]
        holder, change, key = (kwargs.get(k) for k in ("holder", "change", "key"))
        return [
            kinds,
            f"{holder.worker}/{holder.epoch}" if holder else "",
            f"expect={change.expect}" if change else "",
            "key" if key else "",
        ]
    if name == "seed":
        s: Seed = args[1]
        return [f"gen={s.gen} inc={s.inc} next={s.next} status={s.status} epoch={s.epoch}"]
    if name == "tail":
        return [args[1:]]
    return [a for a in args[1:] if not isinstance(a, bytes)]


def _answer(name: str, answer: Any) -> Any:
    if name == "tail" and answer is not None:
        return f"gen={answer.gen} arch={answer.arch} next={answer.next} +{len(answer.entries)}"
    if name == "look" and answer is not None:
        return f"gen={answer.gen} next={answer.next} v={answer.version} {answer.worker}/{answer.epoch} {answer.state.decode()}"
    if isinstance(answer, Appended):
        return f"{answer.answer} {answer.gen}/{answer.offset} {answer.id[-4:]}"
    return answer
