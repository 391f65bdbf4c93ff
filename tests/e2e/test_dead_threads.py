"""D6: a thread that a worker can't do without dies: the worker stops itself, instead of holding sessions that nobody renews."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.client import until
from tests.support.deployment import Deployment, Worker, deployment

ENV = {"BYRE_LEASE_SECONDS": "2", "BYRE_SWEEP_SECONDS": "0.5"}


def key(it: Deployment, name: str) -> str:
    """The Redis key that ends with `name`."""
    with it.redis.client() as client:
        return str(next(k.decode() for k in client.keys("*") if k.endswith(name.encode())))


@pytest.mark.parametrize("part", ["sweep", "renew"])
def test_a_worker_whose_thread_dies_stops_itself(part: str) -> None:
    """What Redis holds is no sorted set or hash any more: the script fails in a way that no rule foresees, so the thread is done for."""
    with deployment(env=ENV) as it:
        api, worker = it.apis[0], it.workers[0]
        session = api.session()
        api.turn(session, "/say kept")
        api.say(session, "/run sleep 60")
        api.occurs(session, "tool.call")
        spoilt = key(it, ":leases") if part == "sweep" else key(it, f":log:s:test:{session}")
        with it.redis.client() as client:
            whole = client.dump(spoilt)
            client.set(spoilt, "spoilt")
            assert worker.ended(seconds=60) == 1
            assert f"the {part}ing thread died" in worker.text()
            until("its agent is dead", lambda: not _asleep(it))
            client.restore(spoilt, 0, whole, replace=True)
        follower = Worker(it.env, it.data / "worker-after.log")
        it.workers.append(follower)
        follower.start()
        assert api.becomes(session, "interrupted") == "interrupted"


def _asleep(it: Deployment) -> list[int]:
    """What an agent has started."""
    return [pid for pid in it.processes() if Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"]
