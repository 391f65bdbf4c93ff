"""Which tasks something may be owed to, and who may begin a turn of a task.

The store has the truth (a mark for each such task); this is what workers poll, one command each, and what is rebuilt from the store when
Redis has forgotten it. A task that was taken comes up again by itself until it is settled, so a worker that dies with it loses nothing.

Rules: times are hints, so the hosts' own clocks do. `starting` is held for as long as it takes to look whether a task is idle and to
begin something; it ends by itself, so whoever holds it writes nothing that relies on it after `LOCK_SECONDS`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import redis
from redis.exceptions import LockError

from app.coord.reach import reached
from app.core.errors import Overloaded

LOCK_SECONDS = 40.0
"""As long as the longest request to a worker that is made within it, and some."""
WAIT_SECONDS = 15.0
AT_ONCE = 64


class Owed:
    """One deployment's. Every method raises Unavailable if Redis can't be reached."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._redis = client
        self._prefix = "{" + prefix + "}:owed"

    def soon(self, tenant: str, task: str, delay_ms: int = 0) -> None:
        """The task is to be looked at in `delay_ms`, or earlier if that was said before."""
        with reached():
            self._redis.zadd(self._prefix, {f"{tenant}/{task}": self._now() + delay_ms}, lt=True)

    def again(self, tenant: str, task: str, delay_ms: int) -> None:
        """The task is to be looked at in `delay_ms`, not earlier."""
        with reached():
            self._redis.zadd(self._prefix, {f"{tenant}/{task}": self._now() + delay_ms}, xx=True)

    def take(self, again_ms: int) -> list[tuple[str, str]]:
        """Tenant and task of those that are due; each comes up again after `again_ms` unless it is forgotten before."""
        with reached():
            now = self._now()
            due: Any = self._redis.zrange(self._prefix, 0, now, byscore=True, offset=0, num=AT_ONCE)
            if not due:
                return []
            self._redis.zadd(self._prefix, dict.fromkeys(due, now + again_ms), xx=True)
        found = [member.decode() if isinstance(member, bytes) else str(member) for member in due]
        return [(tenant, task) for tenant, _, task in (member.partition("/") for member in found)]

    def forget(self, tenant: str, task: str) -> None:
        """Nothing is owed to the task."""
        with reached():
            self._redis.zrem(self._prefix, f"{tenant}/{task}")

    @contextlib.contextmanager
    def starting(self, tenant: str, task: str) -> Iterator[None]:
        """Held by one at a time. Raises Overloaded if others have it for too long."""
        lock = self._redis.lock(f"{self._prefix}:starting:{tenant}:{task}", timeout=LOCK_SECONDS, sleep=0.05)
        with reached():
            got = lock.acquire(blocking_timeout=WAIT_SECONDS)
        if not got:
            raise Overloaded("others are at work on this task; try again")
        try:
            yield
        finally:
            # one that ran out, or that a new Redis doesn't know, is nobody's any more
            with contextlib.suppress(LockError, redis.RedisError):
                lock.release()

    @staticmethod
    def _now() -> int:
        return int(time.time() * 1000)
