"""Probes: is the process up, can it serve, and its numbers. They need no token and tell nothing of any tenant.

Rules: `/healthz` asks nobody, so that a lost store doesn't get processes killed. `/readyz` asks every dependency, at most
once in `CACHE_SECONDS` however often it is called, and says no while the process drains, so that a load balancer looks
elsewhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import falcon
import orjson
import structlog

from app.http.deps import Deps
from app.http.metrics import CONTENT_TYPE, Metrics
from app.http.requests import JSON, Request

log = structlog.get_logger(__name__)

CACHE_SECONDS = 1.0


class Health:
    """`GET /healthz`: 200 as long as the process answers at all."""

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        _send(resp, 200, {"status": "ok"})

    on_head = on_get


class Ready:
    """`GET /readyz`: 200 when everything this process needs is reached, else 503 with what is not."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._lock = threading.Lock()
        self._asked_at = float("-inf")
        self._checks: dict[str, str] = {}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        checks = dict(self._current())
        if self._deps.drain.active:
            checks["process"] = "draining"
        good = all(state == "ok" for state in checks.values())
        _send(resp, 200 if good else 503, {"status": "ready" if good else "unavailable", "checks": checks})
        if not good:
            resp.set_header("Retry-After", "2")

    on_head = on_get

    def _current(self) -> dict[str, str]:
        with self._lock:  # one asks, the others wait for what it finds
            if self._deps.monotonic() - self._asked_at >= CACHE_SECONDS:
                self._checks = {name: _check(name, ask) for name, ask in self._deps.ready.items()}
                self._asked_at = self._deps.monotonic()
            return self._checks


class Numbers:
    """`GET /metrics` in the Prometheus text format."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        resp.data = self._metrics.text()
        resp.content_type = CONTENT_TYPE
        resp.set_header("Cache-Control", "no-store")

    on_head = on_get


def add_probes(app: falcon.App[Request, falcon.Response], deps: Deps, metrics: Metrics) -> None:
    """Adds the three routes."""
    app.add_route("/healthz", Health())
    app.add_route("/readyz", Ready(deps))
    app.add_route("/metrics", Numbers(metrics))


def _check(name: str, ask: Callable[[], None]) -> str:
    try:
        ask()
    except Exception as error:  # noqa: BLE001 - whatever it is, the answer is no
        log.warning("not_ready", dependency=name, error=repr(error))
        return "unreachable"
    return "ok"


def _send(resp: falcon.Response, status: int, document: dict[str, object]) -> None:
    resp.status = status
    resp.data = orjson.dumps(document)
    resp.content_type = JSON
    resp.set_header("Cache-Control", "no-store")
