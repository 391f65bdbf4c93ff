"""What processes say of themselves, for people who run the deployment: signs of life, and what vendors and agents did wrong lately.

Rules: a sign of life is gone by itself `LIFE_SECONDS` after its process stopped giving it; what is counted stays as long as Redis does.
Nothing here is needed to run anything.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson
import redis

from app.coord.reach import reached
from app.coord.scripts import Scripts

BEAT_SECONDS = 4.0
LIFE_SECONDS = 10.0
KEPT_ERRORS = 50
MOST = 10_000
"""Sessions of one vendor that are looked at."""
Document = dict[str, Any]
Documents = list[Document]


class Waiting(NamedTuple):
    """A session that waits (`status` ""), or has a slot; `since` in milliseconds of Redis's clock."""

    log: str
    vendor: str
    since: int
    status: str = ""


class Overview(NamedTuple):
    """What waits and what has a slot, `states` of the logs that were asked for, and Redis's time in milliseconds."""

    now: int
    queued: list[Waiting]
    running: list[Waiting]
    states: list[str]


class Board:
    """One deployment's. Every method raises Unavailable if Redis can't be reached."""

    def __init__(self, scripts: Scripts) -> None:
        self._run, self._redis = scripts.run, scripts.client
        self._prefix = f"{scripts.prefix}:board"

    def beat(self, kind: str, id: str, doc: Document) -> None:
        """A sign of life of a process: "worker" or "api"."""
        name = f"{kind}:{id}"
        with reached(), self._redis.pipeline(transaction=True) as pipe:
            pipe.set(f"{self._prefix}:beat:{name}", orjson.dumps(doc), px=int(LIFE_SECONDS * 1000))
            pipe.zadd(f"{self._prefix}:beats", {name: time.time()})
            pipe.zremrangebyscore(f"{self._prefix}:beats", "-inf", time.time() - 3600)
            pipe.execute()

    def gone(self, kind: str, id: str) -> None:
        """A process ends."""
        with reached():
            self._redis.delete(f"{self._prefix}:beat:{kind}:{id}")

    def beats(self, kind: str) -> Documents:
        """What the living processes of a kind have said last."""
        with reached():
            names: Any = self._redis.zrange(f"{self._prefix}:beats", 0, -1)
            wanted = [name.decode() for name in names if name.decode().startswith(f"{kind}:")]
            found: Any = self._redis.mget([f"{self._prefix}:beat:{name}" for name in wanted]) if wanted else []
        return [orjson.loads(raw) for raw in found if raw]

    def limits(self, tenant: str) -> Document:
        """What each vendor said last, by vendor."""
        with reached():
            found: Any = self._redis.hgetall(f"{self._prefix}:limits:{tenant}")
        return {vendor.decode(): orjson.loads(raw) for vendor, raw in found.items()}

    def errors(self, tenant: str, counts: Mapping[str, int], found: Sequence[Document]) -> None:
        """Lines of agents that couldn't be read: how many by vendor, and the latest, oldest first, as the contract's ProtocolError."""
        with reached(), self._redis.pipeline(transaction=True) as pipe:
            for vendor, count in counts.items():
                pipe.hincrby(f"{self._prefix}:errors:{tenant}", vendor, count)
            for each in found:
                pipe.lpush(f"{self._prefix}:recent:{tenant}", orjson.dumps(each))
            pipe.ltrim(f"{self._prefix}:recent:{tenant}", 0, KEPT_ERRORS - 1)
            pipe.execute()

    def protocol_errors(self, tenant: str) -> Document:
        """The contract's ProtocolErrors."""
        with reached():
            counts: Any = self._redis.hgetall(f"{self._prefix}:errors:{tenant}")
            recent: Any = self._redis.lrange(f"{self._prefix}:recent:{tenant}", 0, -1)
        return {
            "counts": {vendor.decode(): int(count) for vendor, count in counts.items()},
            "recent": [orjson.loads(raw) for raw in recent],
        }

    def overview(self, tenant: str, logs: Sequence[str]) -> Overview:
        """Queue and slots of a tenant's sessions, and the status of `logs`; both lists in the order in which they came."""
        now, queued, running, states = self._run("overview", f"s:{tenant}:", MOST, *logs)
        return Overview(
            int(now),
            sorted(map(_waiting, queued), key=lambda row: (row.since, row.log)),
            sorted(map(_waiting, running), key=lambda row: (row.since, row.log)),
            [state.decode() for state in states],
        )


def note_limit(client: redis.Redis, prefix: str, tenant: str, vendor: str, said: Document) -> None:
    """What a vendor said last of its limits. Raises Unavailable."""
    with reached():
        client.hset("{" + prefix + "}:board:limits:" + tenant, vendor, orjson.dumps(said))


def _waiting(row: list[bytes]) -> Waiting:
    log, vendor, since, *status = (part.decode() for part in row)
    return Waiting(log, vendor, int(float(since)), *status)
