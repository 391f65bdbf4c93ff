"""A task's work on its way into the object store: what its last look found, as an incremental bundle.

Rules: a snapshot is told of (its record, its event) only when its bundle is in the store, so that whoever is told of it can have it from
any worker. At most one bundle is made at a time, at most every `PAUSE_SECONDS`, and one more when a turn ends, which waits for it. What
failed is tried again with the next one: nothing is given up but the waiting.
"""

from __future__ import annotations

import random
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import structlog

from app.core.errors import ByreError, Fenced, Unavailable
from app.git import bundles
from app.git.bundles import Manifest
from app.git.repo import Worktree
from app.git.snapshots import Taken
from app.git.vault import Outrun, Vault
from app.store.contract import StoreError

PAUSE_SECONDS = 2.0
FLUSH_SECONDS = 60.0
_TRIES = 4
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Saver:
    """Saves one worktree. `publish` is called with records of snapshots that are in the store; `holds` says whether we may still write."""

    def __init__(
        self,
        vault: Vault,
        worktree: Worktree,
        task: Document,
        host: str,
        run: Callable[[], str],
        pool: Executor,
        publish: Callable[[Document], None],
        holds: Callable[[], bool],
    ) -> None:
        self._vault, self._worktree, self._task, self._host = vault, worktree, task, host
        self._run, self._pool, self._publish, self._holds = run, pool, publish, holds
        self.previous: Manifest | None = vault.latest()
        if self.previous and not worktree.repo.exists(self.previous["carrier"]):
            self.previous = {**self.previous, "carrier": None}
        self._records: list[Document] = []
        self._taken: Taken | None = None
        self._saved: Taken | None = None
        self._busy = False
        self._failure: ByreError | None = None
        self._last = 0.0
        self._changed = threading.Condition()

    def offer(self, taken: Taken, record: Document | None = None) -> None:
        """The worktree looks so now; `record` is of the snapshot that was taken of it."""
        with self._changed:
            if record:
                self._records.append(record)
            elif self._taken is None and self._saved and (taken.looked, taken.state) == (self._saved.looked, self._saved.state):
                return
            self._taken = taken
        self.tick()

    def tick(self) -> None:
        """Begins to save what waits, if it is time."""
        with self._changed:
            if self._taken is None or self._busy or time.monotonic() - self._last < PAUSE_SECONDS:
                return
            self._busy = True
        self._pool.submit(self._work)

    def due(self) -> float:
        """Seconds until `tick` has something to do."""
        with self._changed:
            if self._taken is None:
                return PAUSE_SECONDS * 1000
            return max(0.05, PAUSE_SECONDS - (time.monotonic() - self._last))

    def flush(self, seconds: float = FLUSH_SECONDS) -> None:
        """Waits until all that was offered is saved. Raises what went wrong, Unavailable after `seconds`."""
        until = time.monotonic() + seconds
        tries = 0
        while True:
            with self._changed:
                while self._busy:
                    if not self._changed.wait(max(0.0, until - time.monotonic())):
                        raise Unavailable("the task's work could not be saved in time")
                if self._taken is None:
                    return
                self._busy = True
            self._work()
            if self._failure:
                tries += 1
                if tries == _TRIES or isinstance(self._failure, Fenced) or time.monotonic() > until:
                    raise self._failure
                time.sleep(0.2 * 2**tries * random.uniform(0.5, 1.5))  # noqa: S311 - jitter, not a secret

    def _work(self) -> None:
        """Saves once; called by whoever has set `_busy`."""
        with self._changed:
            taken, records = self._taken, list(self._records)
        failure: ByreError | None = None
        try:
            if taken:
                self._save(taken, records)
        except (StoreError, OSError) as error:
            failure = Unavailable(f"the task's work was not saved: {error}")
        except ByreError as error:
            failure = error
        finally:
            with self._changed:
                self._failure = failure
                if failure is None:
                    self._saved = taken
                    self._taken = None if self._taken is taken else self._taken
                    self._records = [record for record in self._records if record not in records]
                else:
                    logger.warning("a task's work isn't in the store yet", task=self._task["id"], why=failure.message)
                self._last = time.monotonic()
                self._busy = False
                self._changed.notify_all()

    def _save(self, taken: Taken, records: list[Document]) -> None:
        for _ in range(_TRIES):
            try:
                self._bundle(taken, records)
                break
            except Outrun:
                if not self._holds():
                    raise Fenced("the task's worktree is on another host by now") from None
                self.previous = {**(self._vault.latest() or {}), "carrier": None}
        else:
            raise Unavailable("somebody else keeps writing this task's bundles")
        for record in records:
            self._publish(record)

    def _bundle(self, taken: Taken, records: list[Document]) -> None:
        before = self.previous
        full = before is None or before["carrier"] is None or before["seq"] - before["start"] >= bundles.FULL_AFTER
        with tempfile.TemporaryDirectory(prefix="bundle-", dir=self._worktree.repo.views.git.private) as place:
            file = Path(place) / "bundle"
            manifest = bundles.create(
                self._worktree,
                taken,
                file,
                branch=self._task["branch"],
                base=self._task["base_ref"],
                previous=None if full else before,
            )
            if manifest is None:
                return
            manifest["records"] = records
            seq = before["seq"] + 1 if before else 1
            start = before["start"] if before and not full else seq
            self.previous = self._vault.add(seq, manifest, file, start=start, host=self._host)
        (self._worktree.private / "saved").write_text(str(seq))
        if full and seq > 1:
            self._vault.confirm([self.previous])
            self._vault.drop_before(seq, self._run())
