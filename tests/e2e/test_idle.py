"""A session that nobody talks to costs nothing: no request to the store, no command to Redis, no process."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import redis

from tests.support.client import until
from tests.support.deployment import S3_KEYS, Deployment, deployment, owned
from tests.support.moto_server import moto_server

SECONDS = 8.0
ENV = {"BYRE_LEASE_SECONDS": "6", "BYRE_WARM_SECONDS": "0.5"}


def commands(client: redis.Redis) -> int:
    """How many commands the server has run, those of scripts included."""
    stats = client.info("commandstats")
    return sum(int(each["calls"]) for name, each in stats.items() if name not in ("cmdstat_info", "cmdstat_config"))


def spent(it: Deployment, client: redis.Redis, requests: Callable[[], int]) -> tuple[int, int, int]:
    """Redis commands and store requests in some seconds, and the processes there are."""
    before = commands(client), requests()
    time.sleep(SECONDS)  # the time in which nothing is to happen
    return commands(client) - before[0], requests() - before[1], len(owned(it.data))


def test_two_hundred_idle_sessions_cost_what_none_costs() -> None:
    with moto_server() as s3:
        env = {**ENV, **S3_KEYS, "BYRE_S3_ENDPOINT": s3.endpoint}
        with deployment(store=f"s3://{s3.bucket()}", env=env) as it, it.redis.client() as client:
            until("the sweep has looked once", lambda: s3.requests and not spent_now(s3))
            none = spent(it, client, lambda: s3.requests)
            (api,) = it.apis
            with ThreadPoolExecutor(8) as pool:
                sessions = list(pool.map(lambda _: api.session(), range(200)))
                list(pool.map(lambda session: api.say(session, "/say hello"), sessions[:20]))
            for session in sessions[:20]:
                api.becomes(session, "idle")
            until("no agent is kept", lambda: len(owned(it.data)) <= none[2])
            many = spent(it, client, lambda: s3.requests)
    assert none[1] == 0
    assert many[1] == 0, f"{many[1]} requests to the store in {SECONDS:g} s"
    assert many[0] <= none[0] * 1.3 + 10, f"{many[0]} commands in {SECONDS:g} s, {none[0]} without sessions"
    assert many[2] == none[2], "a process was left"


def spent_now(s3: object) -> int:
    """Requests of the last second."""
    before = s3.requests  # type: ignore[attr-defined]
    time.sleep(1.0)
    return int(s3.requests - before)  # type: ignore[attr-defined]
