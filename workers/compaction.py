"""Compaction of the sessions that this worker gives back.

Rules: a session is looked at when its lease is given back, never while it is idle, and what it has in Redis and in this process's
memory says mostly that there is nothing to do; only past that a listing is asked for. One log at a time, in the background pool: whoever
comes while one is under way is looked at again when it is given back the next time.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import structlog

from app.core.errors import ByreError
from app.log.compact import Compactor
from app.store.keys import LogName

logger = structlog.get_logger(__name__)


class Compaction:
    """`pool` runs the work; its owner ends it."""

    def __init__(self, compactor: Compactor, pool: ThreadPoolExecutor) -> None:
        self._compactor, self._pool = compactor, pool
        self._busy = threading.Lock()

    def released(self, name: LogName, upto: int) -> None:
        """Takes note that the lease of a log, archived up to `upto`, was given back. Returns at once."""
        try:
            self._pool.submit(self._look, name, upto)
        except RuntimeError:
            return  # the worker ends, and its pool takes nothing any more

    def _look(self, name: LogName, upto: int) -> None:
        if not self._busy.acquire(blocking=False):
            return
        try:
            if self._compactor.due(name, upto):
                self._compactor.run(name)
        except ByreError as error:
            # what was done is of use to the next one; what is damaged has been named and frozen by whoever read it
            logger.warning("log not compacted", log=name.text, why=error.message)
        except Exception:
            logger.exception("compaction failed", log=name.text)
        finally:
            self._busy.release()
