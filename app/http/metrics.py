"""Numbers of one process, for Prometheus.

Rules: names begin with `byre_`; labels are operation ids and status codes, never a tenant, login, session or path, so
`/metrics` tells nothing of anybody and its size is bounded. Collaborators keep plain numbers and are asked when somebody
scrapes. With several server processes behind one port each answers for itself: scrape each process, or sum over scrapes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import falcon
from prometheus_client import CollectorRegistry, Counter, GCCollector, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from app.http.deps import Gauge
from app.http.requests import Request

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """Counts requests as they are answered, and renders everything."""

    def __init__(self, live_streams: Callable[[], float], gauges: Iterable[Gauge] = ()) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter("byre_http_requests", "Requests answered.", ("operation", "status"), registry=self._registry)
        self._seconds = Histogram(
            "byre_http_request_seconds",
            "Time until a request was answered; for a stream, until it was opened.",
            ("operation",),
            buckets=_BUCKETS,
            registry=self._registry,
        )
        self._count: dict[tuple[str, int], Counter] = {}
        self._time: dict[str, Histogram] = {}
        streams = Gauge("live_streams", "SSE responses that are open.", live_streams)
        self._registry.register(_Asked((streams, *gauges)))
        ProcessCollector(namespace="byre", registry=self._registry)
        GCCollector(registry=self._registry)

    def observe(self, req: Request, resp: falcon.Response) -> None:
        """Counts one answer. What matched no operation (probes, unknown paths) is counted as `none`."""
        operation = req.operation or "none"
        status = resp.status_code
        count = self._count.get((operation, status))
        if count is None:  # children are looked up once: `labels` costs more than the rest together
            count = self._count[operation, status] = self._requests.labels(operation, str(status))
            self._time[operation] = self._seconds.labels(operation)
        count.inc()
        self._time[operation].observe(time.monotonic() - req.started)

    def text(self) -> bytes:
        """Everything in the text format 0.0.4."""
        return generate_latest(self._registry)


class _Asked(Collector):
    """Numbers that others keep. One that fails is left out."""

    def __init__(self, gauges: Iterable[Gauge]) -> None:
        self._gauges = tuple(gauges)

    def collect(self) -> Iterator[Metric]:
        for gauge in self._gauges:
            try:
                value = gauge.value()
            except Exception:  # noqa: BLE001, S112 - a number that can't be had must not hide the others
                continue
            kind = CounterMetricFamily if gauge.total else GaugeMetricFamily
            yield kind(f"byre_{gauge.name}", gauge.help, value=value)
