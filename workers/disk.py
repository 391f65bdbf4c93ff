"""A worker's disk: what closed tasks and crashes have left goes, and worktrees leave when they take more than the budget.

Rules: a clean-up that is not sure keeps. What leaves is in the store and was read back from there (`Places.leave`), the least recently
used first, and never one that a session is in or that holds nested repositories. One worker of a disk at a time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import structlog

from app.core.errors import ByreError, Missing, Unavailable
from app.git import changes, locks, snapshots, worktrees
from app.git.repo import Repo, Worktree
from app.services.entities import Entities
from app.store import keys
from app.store.contract import StoreError
from workers.places import Places

EVERY_SECONDS = 60.0
ORPHAN_SECONDS = 3600.0
"""Age from which a worktree without a record is one that a crash has left: creating a task takes a minute at most."""
ENOUGH = 0.9
"""Part of the budget down to which worktrees leave."""
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Kept(NamedTuple):
    """A worktree on this disk: when it was looked at last (Unix seconds), and its bytes."""

    tenant: str
    task: str
    path: Path
    used: float
    bytes: int


class Disk:
    """Keeps one worker's disk clean. `budget` in bytes for all worktrees, 0 for no limit; `failed` is called if the thread dies."""

    def __init__(self, places: Places, entities: Entities, budget: int, failed: Callable[[], None]) -> None:
        self._places, self._entities, self._budget, self._failed = places, entities, budget, failed
        self._root = places.repositories.roots.workspaces / "tasks"
        self._lock = places.repositories.views.git.private / "used" / "disk"
        self._sizes: dict[Path, tuple[float, int]] = {}
        self._wake = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="disk", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends after what it does just now."""
        self._closed = True
        self._wake.set()
        self._thread.join(30)

    def look(self) -> None:
        """Something may have to go: looks soon."""
        if self._budget:
            self._wake.set()

    def round(self) -> None:
        """Looks once. Raises Unavailable if another worker of this disk looks just now."""
        with locks.held(self._lock, 0):
            kept = [one for one in map(self._one, self._all()) if one]
            total = sum(one.bytes for one in kept)
            if self._budget and total > self._budget:
                for one in sorted(kept, key=lambda one: one.used):
                    if total <= self._budget * ENOUGH or self._closed:
                        break
                    if self._leaves(one):
                        total -= one.bytes

    def _run(self) -> None:
        try:
            while not self._closed:
                self._wake.wait(EVERY_SECONDS)
                self._wake.clear()
                if self._closed:
                    return
                try:
                    self.round()
                except (ByreError, StoreError, OSError) as error:
                    logger.info("the disk was not looked at", why=str(error))
                time.sleep(0.2)  # what wakes it may come often
        except Exception:
            logger.exception("the thread that keeps the disk died")
            self._failed()

    def _all(self) -> Iterator[tuple[str, Path]]:
        for tenant in sorted(self._root.iterdir()) if self._root.is_dir() else ():
            if keys.valid_tenant(tenant.name) and tenant.is_dir():
                for place in sorted(tenant.iterdir()):
                    if keys.is_id(place.name):
                        yield tenant.name, place

    def _one(self, where: tuple[str, Path]) -> Kept | None:
        """Clears away one worktree if nobody needs it; else what is to be known of it."""
        tenant, place = where
        try:
            task = {**self._entities.get(tenant, keys.task(tenant, place.name), "task"), "tenant": tenant}
            if task["status"] != "active":
                self._remove(tenant, task)
                return None
        except Missing:
            self._orphan(place)
            return None
        except (ByreError, OSError) as error:
            logger.info("a worktree was left as it is", task=place.name, why=str(error))
        return self._measured(tenant, place)

    def _remove(self, tenant: str, task: Document) -> None:
        for note in self._places.remove(self._project(tenant, task), task):
            logger.warning("not all of a task could be removed", task=task["id"], why=note)
        self._places.requests.gone(tenant, task["id"])
        self._places.discard(task)
        logger.info("a closed task's worktree was removed", task=task["id"])

    def _orphan(self, place: Path) -> None:
        """Removes a worktree that no task is known of, if it is old and nobody has worked in it."""
        try:
            if time.time() - place.stat().st_mtime < ORPHAN_SECONDS:
                return
            common = Path((place / ".git").read_text().removeprefix("gitdir: ").strip()).parent.parent
            worktree = Worktree(Repo(self._places.repositories.views, common), place, place.name)
            if not worktrees.is_whole(worktree):
                return
            taken, head = snapshots.observe(worktree), worktree.head()
            clean = head.commit and taken.looked.tree == changes.tree_of(worktree.repo, head.commit)
            if clean and not (taken.looked.nested or taken.looked.ignored_count or taken.looked.left):
                worktrees.remove(worktree, (head.ref or "").removeprefix("refs/heads/") or None)
                logger.info("a worktree that was never a task's was removed", task=place.name)
        except (ByreError, OSError) as error:
            logger.info("a worktree without a task was left", task=place.name, why=str(error))

    def _leaves(self, one: Kept) -> bool:
        try:
            task = {**self._entities.get(one.tenant, keys.task(one.tenant, one.task), "task"), "tenant": one.tenant}
            return self._places.leave(self._project(one.tenant, task), task, 0)
        except (ByreError, StoreError, OSError) as error:
            logger.info("a worktree stays", task=one.task, why=str(error))
            return False

    def _project(self, tenant: str, task: Document) -> Document:
        project = self._entities.get(tenant, keys.project(tenant, task["project_id"]), "project")
        return {**project, "tenant": tenant}

    def _measured(self, tenant: str, place: Path) -> Kept:
        """Its size, measured again only if it was looked at since."""
        trees = self._places.repositories.views.git.private / "tasks" / place.name / "trees"
        used = trees.stat().st_mtime if trees.exists() else place.stat().st_mtime if place.exists() else 0.0
        known = self._sizes.get(place)
        if known is None or known[0] != used:
            known = self._sizes[place] = (used, worktrees.size(place))
            self._tell(tenant, place.name, known[1])
        return Kept(tenant, place.name, place, *known)

    def _tell(self, tenant: str, task: str, size: int) -> None:
        """Writes down how large a task is, for `byre project show`."""
        try:
            self._places.repositories.store.put(keys.task(tenant, task, "size.json"), orjson.dumps({"worktree_bytes": size}))
        except StoreError as error:
            raise Unavailable("the size of a task could not be written down") from error
