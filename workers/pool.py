"""The sessions of one worker: claims as many as there are slots, and gives them back when the worker drains.

Rules: a wake-up is only a hint, the poll is the truth; a claim that finds nothing costs one command; the thread that claims never
runs anything itself. If it dies the worker stops on purpose.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import structlog

from app.core.errors import Unavailable
from app.store.keys import parse_log_name
from workers.runner import Runner, Tools

POLL_SECONDS = 2.0
AFFINITY_MS = 200
"""How long a session is offered only to the worker that had it last."""

logger = structlog.get_logger(__name__)


class Pool:
    """`vendors` are the harnesses that this worker runs, `slots` how many sessions at once. `failed` is called if claiming dies."""

    def __init__(self, tools: Tools, vendors: list[str], slots: int, failed: Callable[[], None]) -> None:
        self._tools, self._vendors, self._slots, self._failed = tools, vendors, slots, failed
        self._runners: set[Runner] = set()
        self._changed = threading.Condition()
        self._hint = False
        self._draining = False
        self._thread = threading.Thread(target=self._run, name="claim", daemon=True)

    def start(self) -> None:
        """Begins to claim."""
        self._thread.start()

    def wake(self) -> None:
        """Something may be claimable."""
        with self._changed:
            self._hint = True
            self._changed.notify_all()

    def running(self) -> int:
        """How many sessions it holds."""
        with self._changed:
            return len(self._runners)

    def held(self) -> list[Runner]:
        """The sessions that it holds."""
        with self._changed:
            return list(self._runners)

    def drain(self, grace: float, cut: float) -> bool:
        """Claims nothing more, lets turns run for `grace` seconds, then interrupts them, with `cut` seconds to end. True if all ended."""
        with self._changed:
            self._draining = True
            self._changed.notify_all()
        self._thread.join(10)
        with self._changed:
            left = list(self._runners)  # now that none is added any more
        for runner in left:
            runner.drain()
        until = time.monotonic() + grace
        with self._changed:
            self._changed.wait_for(lambda: not self._runners, timeout=max(0.0, until - time.monotonic()))
            left = list(self._runners)
        for runner in left:
            runner.stop()
        until = time.monotonic() + cut
        ended = [runner.join(max(0.0, until - time.monotonic())) for runner in left]
        return all(ended)

    def _run(self) -> None:
        try:
            while self._wait_for_slot():
                self._wait_for_hint(self._claim_all())
        except Exception:
            logger.exception("the claiming thread died")
            self._failed()

    def _wait_for_slot(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._draining or len(self._runners) < self._slots)
            return not self._draining

    def _wait_for_hint(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._draining or self._hint, timeout=seconds)
            self._hint = False

    def _claim_all(self) -> float:
        """Claims until nothing is claimable or no slot is free; gives the seconds until it is worth another look."""
        while True:
            with self._changed:
                if self._draining or len(self._runners) >= self._slots:
                    return 0.0
            lease_ms = int(self._tools.renewer.lease_seconds * 1000)
            try:
                claimed = self._tools.coord.claim(self._tools.worker, lease_ms, AFFINITY_MS, self._vendors, self._tools.caps)
            except Unavailable:
                return POLL_SECONDS * random.uniform(0.5, 1)  # noqa: S311
            if claimed is None:
                return POLL_SECONDS * random.uniform(0.8, 1.2)  # noqa: S311
            if not claimed.log:
                return claimed.retry_ms / 1000 + 0.005
            runner = Runner(self._tools, parse_log_name(claimed.log), self._ended)
            with self._changed:
                self._runners.add(runner)
            runner.start()

    def _ended(self, runner: Runner) -> None:
        with self._changed:
            self._runners.discard(runner)
            self._hint = True
            self._changed.notify_all()
