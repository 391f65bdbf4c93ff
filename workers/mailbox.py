"""What a turn runner waits on: outputs of its harness, news of its log, and being told to stop.

Rules: outputs are bounded, so a flooding harness waits in its pipe and not in our memory; news are flags, looked up when they are read.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from workers.bridge.outputs import Bridged
from workers.harness.base import Output

MAX_OUTPUTS = 4096
MAX_BYTES = 4 * 2**20
"""Bounds of what a harness has said and its runner hasn't read: beyond either the harness waits."""
Anything = Output | Bridged


class Mailbox:
    """One consumer, any number of producers."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._outputs: deque[Anything] = deque()
        self._bytes = 0
        self._source = 0
        self._news = False
        self._poked = False
        self._ended = False
        self._lost: str | None = None
        self._drain = False
        self._stop = False

    def put(self, outputs: Sequence[Anything], source: int | None = None, size: int = 0) -> None:
        """Adds outputs; waits while too many are unread. What comes from a former `source` (see `fresh`) is dropped.

        `size` is how many bytes they were.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._room() or source not in (None, self._source))
            if source in (None, self._source) and self._lost is None:
                self._outputs.extend(outputs)
                self._bytes += size
            self._changed.notify_all()

    def _room(self) -> bool:
        return (len(self._outputs) <= MAX_OUTPUTS and self._bytes <= MAX_BYTES) or self._lost is not None or self._ended

    def news(self) -> None:
        """The log has an input, or was revoked."""
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def ended(self, source: int) -> None:
        """The harness of `source` has closed its output."""
        with self._changed:
            if source == self._source:
                self._ended = self._poked = True
            self._changed.notify_all()

    def lost(self, why: str) -> None:
        """The lease is lost."""
        with self._changed:
            self._lost, self._poked = why, True
            self._changed.notify_all()

    def drain(self) -> None:
        """The worker ends soon: no further turn is to begin."""
        with self._changed:
            self._drain = self._poked = True
            self._changed.notify_all()

    def stop(self) -> None:
        """The worker ends now: a turn that runs is to be cut."""
        with self._changed:
            self._drain = self._stop = self._poked = True
            self._changed.notify_all()

    def fresh(self) -> int:
        """Forgets what a former harness process left, and whatever it may still say; gives the next one's source number."""
        with self._changed:
            self._outputs.clear()
            self._bytes = 0
            self._ended = False
            self._source += 1
            self._changed.notify_all()
            return self._source

    def wait(self, timeout: float) -> tuple[list[Anything], bool, bool]:
        """All unread outputs, whether there was news, and whether the output has ended (after the last of them).

        Returns at the first of them, once for each time that the harness ended, the lease was lost or the worker was told to end,
        or after `timeout` seconds.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._outputs or self._news or self._poked, max(timeout, 0))
            outputs, news = list(self._outputs), self._news
            self._outputs.clear()
            self._bytes = 0
            self._news = self._poked = False
            self._changed.notify_all()
            return outputs, news, self._ended

    @property
    def loss(self) -> str | None:
        """Why the lease is lost, None while it is held."""
        return self._lost

    @property
    def draining(self) -> bool:
        """Whether no further turn is to begin."""
        return self._drain

    @property
    def stopping(self) -> bool:
        """Whether a turn that runs is to be cut."""
        return self._stop
