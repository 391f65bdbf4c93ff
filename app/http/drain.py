"""Going away: what has to stop when this process is told to stop.

Rules: draining begins once and never ends. Whoever holds something open for long registers a way to end it; that is called
exactly once, also when it registers after draining has begun. Requests that are under way are not touched.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Drain:
    """The switch of one process. `active` is read often and costs an attribute."""

    def __init__(self) -> None:
        self.active = False
        self._lock = threading.Lock()
        self._enders: dict[int, Callable[[], None]] = {}

    def __len__(self) -> int:
        return len(self._enders)

    def register(self, key: object, end: Callable[[], None]) -> None:
        """`end` is called when draining begins, at once if it has. It must not raise or wait. `key` is any object, told apart
        by identity.
        """
        with self._lock:
            if not self.active:
                self._enders[id(key)] = end
                return
        end()

    def forget(self, key: object) -> None:
        """`key` has ended by itself. Does nothing if it isn't registered."""
        with self._lock:
            self._enders.pop(id(key), None)

    def begin(self) -> None:
        """Starts draining. Doing it again does nothing."""
        with self._lock:
            self.active = True
            enders, self._enders = list(self._enders.values()), {}
        for end in enders:
            end()
