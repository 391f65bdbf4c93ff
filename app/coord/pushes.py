"""Which inbox items people may still have to be told of, and how often somebody was told in this minute.

What lies here is a hint: the store has the items, and what was sent of them. Workers poll it with one command, and it is rebuilt from the
store when Redis has forgotten it, and now and then besides. An item that was taken comes up again by itself unless it is forgotten, so a
worker that dies with it loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import redis

from app.coord.reach import reached

AT_ONCE = 16
MOST = 10_000
"""Items that wait; beyond it they are found when it is rebuilt."""
SCAN_SECONDS = 900
PER_MINUTE = 20
"""Messages for one user in a minute, whatever happens."""


class Pushes:
    """One deployment's. Every method raises Unavailable if Redis can't be reached. `clock` gives Unix seconds."""

    def __init__(self, client: redis.Redis, prefix: str, clock: Callable[[], float] = time.time) -> None:
        self._redis, self._clock = client, clock
        self._prefix = "{" + prefix + "}:push"

    @property
    def channel(self) -> str:
        """The channel on which a message says that something has come."""
        return f"{self._prefix}:wake"

    def ring(self, tenant: str, item: str) -> None:
        """People may have to be told of the item, now."""
        with reached():
            if self._redis.zcard(self._prefix) < MOST:
                self._redis.zadd(self._prefix, {f"{tenant}/{item}": self._now()}, nx=True)
                self._redis.publish(self.channel, b"")

    def take(self, again_seconds: float) -> list[tuple[str, str]]:
        """Tenant and item of those that are due; each comes up again after `again_seconds` unless it is forgotten before.

        Two workers may get the same: the ledger decides between them.
        """
        with reached():
            now = self._now()
            due: Any = self._redis.zrange(self._prefix, 0, now, byscore=True, offset=0, num=AT_ONCE)
            if not due:
                return []
            self._redis.zadd(self._prefix, dict.fromkeys(due, now + int(again_seconds * 1000)), xx=True)
        found = [member.decode() if isinstance(member, bytes) else str(member) for member in due]
        return [(tenant, item) for tenant, _, item in (member.partition("/") for member in found)]

    def again(self, tenant: str, item: str, seconds: float) -> None:
        """The item is to be looked at in `seconds`."""
        with reached():
            self._redis.zadd(self._prefix, {f"{tenant}/{item}": self._now() + int(seconds * 1000)})

    def forget(self, tenant: str, item: str) -> None:
        """Nothing more is to be told of the item."""
        with reached():
            self._redis.zrem(self._prefix, f"{tenant}/{item}")

    def scan(self) -> bool:
        """Whether the caller is the one who is to look through the store now: once in `SCAN_SECONDS`, and at once after a loss."""
        with reached():
            return bool(self._redis.set(f"{self._prefix}:scanned", 1, nx=True, ex=SCAN_SECONDS))

    def may_tell(self, tenant: str, login: str, item: str) -> bool:
        """Counts an item for a user, once however often it is asked; False if it is one too many in this minute."""
        minute = int(self._clock() // 60)
        key = f"{self._prefix}:told:{minute}:{tenant}:{login}"
        with reached(), self._redis.pipeline(transaction=True) as pipe:
            pipe.zadd(key, {item: self._now()}, nx=True)
            pipe.zrank(key, item)
            pipe.expire(key, 120)
            return int(pipe.execute()[1]) < PER_MINUTE

    def _now(self) -> int:
        return int(self._clock() * 1000)
