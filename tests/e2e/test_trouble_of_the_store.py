"""A5: an object store that answers SlowDown to everything for long, or answers late, under a deployment that works."""

from __future__ import annotations

import time

import pytest

from tests.support.client import until
from tests.support.deployment import S3_KEYS, Deployment, deployment
from tests.support.moto_server import moto_server

LEASE = 3


@pytest.mark.parametrize(
    "seconds", [pytest.param(8, id="for 8 s"), pytest.param(60, id="for a minute", marks=pytest.mark.chaos)]
)
def test_slow_down_refuses_clearly_keeps_leases_and_is_over_in_seconds(seconds: int) -> None:
    with moto_server() as s3:
        env = {"BYRE_S3_ENDPOINT": s3.endpoint, "BYRE_LEASE_SECONDS": str(LEASE), "BYRE_SWEEP_SECONDS": "1", **S3_KEYS}
        with deployment(store=f"s3://{s3.bucket()}/busy", env=env) as it:
            api = it.apis[0]
            session, other = api.session(), api.session()
            api.turn(session, "/say kept")
            api.say(session, f"/run sleep {seconds + LEASE}\n/say done")
            started = api.occurs(session, "tool.call")
            s3.busy = True
            until_over = time.monotonic() + seconds
            refused = 0
            while time.monotonic() < until_over:
                asked = time.monotonic()
                body = {"type": "user.message", "text": "/say hello", "key": "k"}
                answer = api.call("POST", f"/sessions/{other}/events", body, timeout=60)
                assert answer.status in (429, 503), answer.status
                assert int(answer.headers["retry-after"]) > 0
                assert time.monotonic() - asked < 25, "tries have a bound"
                refused += 1
            s3.busy = False
            assert refused
            over = time.monotonic()
            until(
                "what was refused is taken",
                lambda: api.call("POST", f"/sessions/{other}/events", body, timeout=60).status == 202,
                seconds=20,
            )
            assert time.monotonic() - over < 15
            _runs_to_its_end(it, session, started["data"]["turn"])
            api.becomes(other, "idle")
            assert [e["data"]["text"] for e in api.events(other) if e["type"] == "user.message"] == ["/say hello"]


@pytest.mark.chaos
def test_a_store_that_takes_seconds_for_everything_loses_no_lease() -> None:
    """Raising an epoch takes longer than a lease: reservations are renewed meanwhile, or workers took the session from each other."""
    with moto_server() as s3:
        env = {"BYRE_S3_ENDPOINT": s3.endpoint, "BYRE_LEASE_SECONDS": "2", "BYRE_SWEEP_SECONDS": "0.5", **S3_KEYS}
        with deployment(workers=2, store=f"s3://{s3.bucket()}/slow", env=env) as it:
            api = it.apis[0]
            session = api.session()
            api.turn(session, "/say kept")
            s3.delay = 1.5
            answer = api.call(
                "POST", f"/sessions/{session}/events", {"type": "user.message", "text": "/say slow", "key": "k"}, timeout=60
            )
            assert answer.status == 202
            api.occurs(session, "turn.started", answer.json["cursor"], seconds=90)
            s3.delay = 0.0
            api.becomes(session, "idle", seconds=60)
            kinds = [e["type"] for e in api.events(session)]
            assert kinds.count("turn.completed") == 2
            assert "turn.interrupted" not in kinds


def _runs_to_its_end(it: Deployment, session: str, turn: str) -> None:
    """The turn that ran all the time was nobody else's meanwhile."""
    api = it.apis[0]
    api.becomes(session, "idle", seconds=90)
    ends = [e for e in api.events(session) if e["type"].startswith("turn.") and e["data"].get("turn") == turn]
    assert [e["type"] for e in ends] == ["turn.started", "turn.completed"]
