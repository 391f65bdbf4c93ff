"""The leases that this worker holds, and their renewal.

Rules: a lease's deadline is on this host's monotonic clock and counts from *before* the call that took or renewed it, so it never lies
beyond Redis's own. Past the deadline the guardian kills the harness whatever else happens here; a lost lease is told to its runner at once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import structlog

from app.coord.coord import Answer, Coord, Holder
from app.core.errors import Unavailable

logger = structlog.get_logger(__name__)


class Lease:
    """One held lease. `lost` is called once, from the renewing thread; `extended` with each new deadline."""

    def __init__(self, log: str, holder: Holder, deadline: float, lost: Callable[[str], None]) -> None:
        self.log, self.holder, self.deadline = log, holder, deadline
        self.extended: Callable[[float], None] = lambda _: None
        self._lost = lost
        self._gone = False

    @property
    def owner(self) -> str:
        """Names this very lease, on disk."""
        return f"{self.holder.worker}.{self.holder.epoch}"

    @property
    def alive(self) -> bool:
        """Whether it may still be believed in."""
        return not self._gone and time.monotonic() < self.deadline

    def extend(self, deadline: float) -> None:
        """A renewal that was asked for in time has been answered."""
        self.deadline = deadline
        self.extended(deadline)

    def lose(self, why: str) -> None:
        """It is gone: fenced, cold, or past its deadline."""
        if not self._gone:
            self._gone = True
            self._lost(why)


class Renewer:
    """Renews all leases of a worker at a third of the lease time. If its thread dies, `failed` is called: the worker must stop."""

    def __init__(self, coord: Coord, worker: str, lease_seconds: float, failed: Callable[[], None]) -> None:
        self._coord, self._worker, self.lease_seconds, self._failed = coord, worker, lease_seconds, failed
        self._leases: dict[tuple[str, int], Lease] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="renew", daemon=True)

    def start(self) -> None:
        """Starts the renewing thread."""
        self._thread.start()

    def close(self) -> None:
        """Ends the renewing thread; leases that are still held run out."""
        self._closed.set()
        self._thread.join(5)

    def add(self, lease: Lease) -> None:
        """Renews `lease` from now on."""
        with self._lock:
            self._leases[lease.log, lease.holder.epoch] = lease

    def remove(self, lease: Lease) -> None:
        """Doesn't renew `lease` any more."""
        with self._lock:
            if self._leases.get((lease.log, lease.holder.epoch)) is lease:
                del self._leases[lease.log, lease.holder.epoch]

    @contextmanager
    def held(self, lease: Lease) -> Iterator[None]:
        """Renews `lease` for the time of the block."""
        self.add(lease)
        try:
            yield
        finally:
            self.remove(lease)

    def reserved(self, log: str) -> AbstractContextManager[None]:
        """Renews a reservation (a lease of epoch 0) made just now: raising the epoch may take longer than it would last by itself."""
        return self.held(Lease(log, Holder(self._worker, 0), time.monotonic() + self.lease_seconds, lambda _: None))

    def _run(self) -> None:
        try:
            while not self._closed.wait(self.lease_seconds / 3):
                self._renew()
        except Exception:
            logger.exception("the renewing thread died")
            self._failed()

    def _renew(self) -> None:
        with self._lock:
            held = list(self._leases.values())
        if not held:
            return
        until = time.monotonic() + self.lease_seconds / 2
        while not self._closed.is_set():
            asked = time.monotonic()
            try:
                answers = self._coord.renew(
                    self._worker, int(self.lease_seconds * 1000), [(x.log, x.holder.epoch) for x in held]
                )
            except Unavailable:
                if time.monotonic() > until:
                    break
                self._closed.wait(min(0.5, self.lease_seconds / 10))
                continue
            for lease, answer in zip(held, answers, strict=True):
                if answer is Answer.OK:
                    lease.extend(asked + self.lease_seconds)
                else:
                    lease.lose(f"lease lost: {answer}")
            return
        for lease in held:
            if not lease.alive:
                lease.lose("lease lost: not renewed in time")
