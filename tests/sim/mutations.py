"""Rules of the protocol, each left out on purpose: the simulation must notice.

`plant` gives a context in which the rule isn't kept; `seeds` is within how many seeds, from 0 on, somebody must notice: some ten times
as many as that takes on average.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import app.log.headcache
import app.log.heads
import app.log.leftovers
import app.log.log
import app.log.recover
import app.log.rewind
import app.store.puts
import workers.turn
from app.coord.fake_server import FakeServer
from app.services.writer import NEVER
from app.store.contract import Absent, PreconditionFailed, StoreError
from tests.sim.redis import Server
from tests.sim.run import Mutation, Run
from tests.sim.shims import replaced


@dataclasses.dataclass(frozen=True)
class Planted:
    """One rule left out."""

    what: str
    plant: Mutation
    seeds: int


def no_put_id(_: Run) -> AbstractContextManager[None]:
    def whose(store: Any, key: str, *_: Any, replacing: bool) -> None:
        try:
            store.head(key)
        except Absent:
            if not replacing:
                return
        except StoreError:
            pass
        raise PreconditionFailed(key)

    return replaced([(app.store.puts, "_whose", whose), (app.store.puts, "_trace", lambda *_: [])])


def refresh_and_retry(_: Run) -> AbstractContextManager[None]:
    real = app.store.puts.put_once

    def stubborn(store: Any, key: str, body: bytes, **how: Any) -> str:
        try:
            return real(store, key, body, **how)
        except PreconditionFailed:
            return str(store.put(key, body, if_match=store.head(key).etag))

    modules = [m for name, m in sys.modules.items() if name.startswith("app.")]
    return replaced([(m, "put_once", stubborn) for m in modules])


def epoch_from_redis(run: Run) -> AbstractContextManager[None]:
    real = app.log.heads.change

    def change(store: Any, log: Any, how: Callable[[Any], Any], *args: Any, **kwargs: Any) -> Any:
        raised: list[int] = []

        def without(head: Any) -> Any:
            fields = how(head)
            if not fields or "epoch" not in fields:
                return fields
            counters = run.deployment.server.memory.groups
            raised[:] = [int(counters.get(f"epoch {log.text}", "0")) + 1]
            counters[f"epoch {log.text}"] = str(raised[0])
            return {**fields, "epoch": head.epoch}

        made = real(store, log, without, *args, **kwargs)
        return dataclasses.replace(made, epoch=raised[0]) if raised else made

    return replaced([(app.log.heads, "change", change)])


def no_fence(_: Run) -> AbstractContextManager[None]:
    return replaced([(module, "put_once", lambda *_, **__: "") for module in (app.log.recover, app.log.rewind)])


def freed_keys_count(_: Run) -> AbstractContextManager[None]:
    return replaced([(app.log.headcache, "LATE_SECONDS", math.inf)])


def delete_without_boundary(_: Run) -> AbstractContextManager[None]:
    return replaced([(app.log.leftovers, "DAY", 0), (app.log.headcache, "LATE_SECONDS", math.inf)])


def no_incarnation(_: Run) -> AbstractContextManager[None]:
    return replaced([(FakeServer, "incarnation", lambda _: "same")])


def harness_too_early(run: Run) -> AbstractContextManager[None]:
    early: set[Any] = set()
    archive, begin = app.log.log.Log.archive, workers.turn.TurnRunner.begin

    def quick(self: Any, *args: Any, **how: Any) -> bool:
        return run.world.scheduler.current in early or archive(self, *args, **how)

    def hasty(self: Any, *args: Any) -> Any:
        early.add(run.world.scheduler.current)
        try:
            return begin(self, *args)
        finally:
            early.discard(run.world.scheduler.current)

    return replaced([(app.log.log.Log, "archive", quick), (workers.turn.TurnRunner, "begin", hasty)])


def no_expect(_: Run) -> AbstractContextManager[None]:
    real = Server.append

    def append(self: Any, log: str, events: Any, **how: Any) -> Any:
        change, found = how.get("change"), self.memory.logs.get(log)
        if change and found and change.expect != NEVER:
            how["change"] = change._replace(expect=found.version)
        return real(self, log, events, **how)

    return replaced([(Server, "append", append)])


MUTATIONS = {
    "no-put-id": Planted("a 412 is taken for another's write, also if it is one's own", no_put_id, 200),
    "refresh-and-retry": Planted("a 412 is answered by writing over what is there", refresh_and_retry, 50),
    "epoch-from-redis": Planted("the epoch is counted in Redis, not in session.json", epoch_from_redis, 200),
    "no-fence": Planted("a generation is ended without a fence", no_fence, 200),
    "delete-without-boundary": Planted("compacted segments are deleted at once", delete_without_boundary, 200),
    "freed-keys-count": Planted("a write to a key that compaction has freed is taken for an archive", freed_keys_count, 200),
    "no-incarnation": Planted("old data of Redis is believed", no_incarnation, 200),
    "harness-too-early": Planted("a harness gets its input before turn.started is in a segment", harness_too_early, 20),
    "no-expect": Planted("a state change doesn't say on which state it was decided", no_expect, 200),
}
