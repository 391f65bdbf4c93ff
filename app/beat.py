"""An API process's signs of life: when it started, and how many streams each tenant has open in it.

Rules: nothing waits for it; a beat that can't be given is left out.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import structlog

from app.coord.board import BEAT_SECONDS, Board
from app.core.errors import Unavailable
from app.log.log import now_text

logger = structlog.get_logger(__name__)


class ApiBeat:
    """Of one process. `streams` gives the open streams by tenant. Made by `open_beat`; its owner closes it."""

    def __init__(self, board: Board, streams: Callable[[], dict[str, int]]) -> None:
        self._board, self._streams = board, streams
        self._id, self._started = secrets.token_hex(8), now_text()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)

    def start(self) -> ApiBeat:
        """Begins."""
        self._thread.start()
        return self

    def say(self) -> None:
        """Gives one now. Raises Unavailable."""
        doc: dict[str, Any] = {"started_at": self._started, "streams": self._streams()}
        self._board.beat("api", self._id, doc)

    def close(self) -> None:
        """Ends it."""
        self._closed.set()
        self._thread.join(1)
        try:
            self._board.gone("api", self._id)
        except Unavailable:
            logger.debug("the end of an API process isn't announced")

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self.say()
            except Unavailable:
                logger.debug("no sign of life given")
            self._closed.wait(BEAT_SECONDS)
