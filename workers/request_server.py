"""Serves requests of API processes: what needs a repository.

Rules: a request is taken by one worker and answered by it, with an error if need be; at most `AT_ONCE` run at once; a bug answers
with an error too and is logged. If the taking thread dies the worker stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from app.coord.requests import HOST_MS, Requests
from app.core.errors import ByreError, Unavailable

AT_ONCE = 8
Document = dict[str, Any]
Handler = Callable[[Document], Any]

logger = structlog.get_logger(__name__)


class RequestServer:
    """`handlers` by the kind of request; `host` names what shares this worker's disk."""

    def __init__(self, requests: Requests, host: str, handlers: dict[str, Handler], failed: Callable[[], None]) -> None:
        self._requests, self._host, self._handlers, self._failed = requests, host, handlers, failed
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="request")
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,), name=name, daemon=True)
            for name, run in (("requests", self._serve), ("host", self._live))
        ]

    def start(self) -> None:
        """Begins to take requests."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Takes no more, and waits for those that run."""
        self._closed.set()
        for thread in self._threads:
            thread.join(5)
        self._pool.shutdown(wait=True)

    def _guarded(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception:
            logger.exception("a thread of the request server died")
            self._failed()

    def _live(self) -> None:
        while not self._closed.is_set():
            try:
                self._requests.live(self._host)
            except Unavailable:
                logger.debug("host not announced")
            self._closed.wait(HOST_MS / 3000)

    def _serve(self) -> None:
        while not self._closed.is_set():
            if not self._slots.acquire(timeout=1):
                continue
            try:
                request = self._requests.take(self._host)
            except Unavailable:
                self._closed.wait(1)
                request = None
            if request is None:
                self._slots.release()
            else:
                self._pool.submit(self._handle, request)

    def _handle(self, request: Document) -> None:
        try:
            try:
                result = self._handlers[request["kind"]](request["body"])
            except ByreError as error:
                self._requests.refuse(request, error)
            except Exception:
                logger.exception("a request failed", kind=request["kind"])
                self._requests.refuse(request, ByreError("the worker failed on this request"))
            else:
                self._requests.answer(request, result)
        except Unavailable:
            logger.warning("a request could not be answered", kind=request["kind"])
        finally:
            self._slots.release()
