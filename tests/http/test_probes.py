"""Probes and numbers: open to all, cheap to ask, and without a word about any tenant."""

from __future__ import annotations

import re

from app.http.deps import Gauge
from app.http.probes import CACHE_SECONDS
from tests.http.conftest import Tier
from tests.http.fakes import CALLERS, SESSION


def test_healthz_asks_nobody() -> None:
    def gone() -> None:
        raise OSError

    tier = Tier(ready={"store": gone})
    assert tier.call("GET", "/healthz", token=None).json == {"status": "ok"}
    tier.deps.drain.begin()
    assert tier.call("GET", "/healthz", token=None).status_code == 200


def test_readyz_says_what_is_missing_and_no_more() -> None:
    def gone() -> None:
        raise OSError("redis://user:hunter2@inside")

    tier = Tier(ready={"store": lambda: None, "redis": gone})
    answer = tier.call("GET", "/readyz", token=None)
    assert answer.status_code == 503
    assert answer.json == {"status": "unavailable", "checks": {"store": "ok", "redis": "unreachable"}}
    assert answer.headers["retry-after"]


def test_readyz_asks_once_a_second() -> None:
    asked: list[int] = []
    tier = Tier(ready={"store": lambda: asked.append(1)})
    for _ in range(5):
        assert tier.call("GET", "/readyz", token=None).json["status"] == "ready"
    assert len(asked) == 1
    tier.clock.now += CACHE_SECONDS
    tier.call("GET", "/readyz", token=None)
    assert len(asked) == 2


def test_a_draining_process_is_not_ready(tier: Tier) -> None:
    assert tier.call("GET", "/readyz", token=None).status_code == 200
    tier.deps.drain.begin()
    answer = tier.call("GET", "/readyz", token=None)
    assert (answer.status_code, answer.json["checks"]) == (503, {"process": "draining"})


def test_requests_are_counted_by_operation_and_status(tier: Tier) -> None:
    for token in ("management", "management", "nobody"):
        tier.call("GET", f"/sessions/{SESSION}", token=token)
    tier.call("GET", "/nowhere")
    text = tier.call("GET", "/metrics", token=None).text
    assert 'byre_http_requests_total{operation="get",status="200"} 2.0' in text
    assert 'byre_http_requests_total{operation="get",status="401"} 1.0' in text
    assert 'byre_http_requests_total{operation="none",status="404"} 1.0' in text
    assert 'byre_http_request_seconds_count{operation="get"} 3.0' in text
    assert "byre_live_streams 0.0" in text


def test_numbers_of_collaborators_are_asked_for_when_scraped() -> None:
    def broken() -> float:
        raise OSError

    value = [1.0]
    gauges = (Gauge("bad", "Broken.", broken), Gauge("appends", "Appends.", lambda: value[0], total=True))
    tier = Tier(gauges=gauges)
    assert "byre_appends_total 1.0" in tier.call("GET", "/metrics", token=None).text
    value[0] = 5.0
    text = tier.call("GET", "/metrics", token=None).text
    assert "byre_appends_total 5.0" in text
    assert "byre_bad" not in text


def test_numbers_tell_nothing_of_anybody(tier: Tier) -> None:
    for name in CALLERS:
        tier.call("GET", f"/sessions/{SESSION}?secret=hunter2", token=name)
    text = tier.call("GET", "/metrics", token=None).text
    for word in ("acme", "rival", "bob", SESSION, "hunter2", *(caller.token_id for caller in CALLERS.values())):
        assert word not in text
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert all(re.match(r"(byre|python_gc)_", name) for name in names), names
