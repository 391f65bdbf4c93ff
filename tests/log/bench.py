"""One process of a deployment, without HTTP and workers: a log, its hub and the services, over a real Redis."""

from __future__ import annotations

import itertools
import os
from typing import Any

import orjson

from app.coord.coord import Answer, RedisCoord
from app.coord.scripts import Scripts
from app.core import ids
from app.core.cursor import Position
from app.log import events, heads
from app.log.hub import Hub, open_hub
from app.log.log import Log, View
from app.services.restoring import Restoring
from app.services.writer import Clock, Committed, Draft, Writer
from app.store import keys
from app.store.contract import Store
from app.store.keys import LogName
from tests.support.redis_server import PrivateRedis

_prefixes = itertools.count()


class Bench:
    """`other()` is a second process of the same deployment."""

    def __init__(self, server: PrivateRedis, store: Store, prefix: str = "") -> None:
        self.server, self.store = server, store
        self.prefix = prefix or f"t{os.getpid()}-{next(_prefixes)}"
        self.client = server.client()
        self.coord = RedisCoord(Scripts(self.client, self.prefix))
        self.log = Log(store, self.coord, grace_ms=1000)
        self.clock = Clock()
        self.writer = Writer(self.log, self.clock)
        self.restoring = Restoring(self.writer, 1000)
        self._hub: Hub | None = None

    @property
    def hub(self) -> Hub:
        if self._hub is None:
            pool = self.client.connection_pool
            self._hub = open_hub(self.log, self.coord, lambda: pool.connection_class(**pool.connection_kwargs))
        return self._hub

    def other(self) -> Bench:
        return Bench(self.server, self.store, self.prefix)

    def close(self) -> None:
        if self._hub:
            self._hub.close()
        self.client.close()

    def session(self) -> LogName:
        """A new session's log."""
        name = LogName("t", self.clock.id())
        doc = {"id": name.session, "harness": "script", "config": {"model": "m"}, "descriptors": []}
        heads.create(self.store, name, self.coord.incarnation(), doc)
        return name

    def say(self, name: LogName, count: int = 1, size: int = 10) -> list[str]:
        """Appends `count` messages of an agent in one batch; their ids."""
        made = [ids.make(0, os.urandom(10)) for _ in range(count)]
        batch = [(i, events.line("assistant.message", i, "2026", {"turn": "t", "text": "x" * size})) for i in made]
        while True:
            done = self.log.append(name, batch)
            if done.answer is not Answer.COLD:
                assert done.answer is Answer.OK, done
                return made
            self.log.recovery.recover(name)

    def commit(self, name: LogName, kind: str, data: dict[str, Any]) -> Committed:
        """Appends one event that changes the state, durably."""

        def decide(_: View) -> list[Draft]:
            return [draft]

        draft = self.writer.draft(kind, data)
        done = self.writer.commit(name, decide)
        assert done
        return done

    def turn(self, name: LogName, said: int = 1) -> str:
        """A whole turn with a checkpoint, as a worker would write it; the checkpoint's id."""
        made = self.clock.id()
        message = self.commit(name, "user.message", {"text": "hello"}).place
        at = self.commit(name, "turn.started", {"turn": made, "epoch": 1, "inputs": [message.id]}).place
        manifest = {"id": made, "meta": {"gen": at.gen, "offset": at.offset}}
        assert name.session
        self.store.put(keys.checkpoint(name.tenant, name.session, made), orjson.dumps(manifest))
        self.say(name, said)
        self.commit(name, "turn.completed", {"turn": made, "usage": {}, "duration_ms": 1, "checkpoint": made})
        return made

    def read(self, name: LogName, after: Position, limit: int = 1000) -> list[tuple[Position, str]]:
        """Everything after a place, page by page, as places and ids."""
        found: list[tuple[Position, str]] = []
        while True:
            page = self.log.read(name, after, limit)
            found += [(e.position, events.id_of(e.raw)) for e in page.entries]
            if page.end:
                return found
            after = page.entries[-1].position
