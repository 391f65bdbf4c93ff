"""Turns that say nothing for long: noticed once, and once more when they go on or end.

Rules: being stuck ends nothing (the turn's own limit does); who runs this server has to be able to see it: `stuck()` counts those of this
process, and each is a line in the log.
"""

from __future__ import annotations

import threading
import time

import structlog

logger = structlog.get_logger(__name__)

_lock = threading.Lock()
_now: set[str] = set()


def stuck() -> int:
    """How many turns of this worker are stuck."""
    with _lock:
        return len(_now)


class Stuck:
    """Watches one turn. `seconds` of silence make it stuck."""

    def __init__(self, seconds: float, session: str, turn: str) -> None:
        self._seconds, self._turn = seconds, turn
        self._log = logger.bind(session=session, turn=turn)
        self._since: float | None = None

    def look(self, heard: float) -> float:
        """Takes note that it was last heard at `heard` (monotonic); gives the seconds until it is worth another look."""
        silent = time.monotonic() - heard
        if silent < self._seconds:
            self.over()
            return self._seconds - silent
        if self._since is None:
            self._since = heard
            with _lock:
                _now.add(self._turn)
            self._log.warning("turn is stuck", silent_seconds=round(silent, 1))
        return self._seconds

    def over(self) -> None:
        """It has gone on, or ended."""
        if self._since is None:
            return
        with _lock:
            _now.discard(self._turn)
        self._log.info("turn is no longer stuck", silent_seconds=round(time.monotonic() - self._since, 1))
        self._since = None
