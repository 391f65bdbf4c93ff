"""Where a task's worktree is: here, on another host, or in the store alone.

A worktree is on one host at a time, its holder, at the same path on every worker with the same BYRE_WORKSPACES. Who needs it elsewhere asks
the holder to leave it; if the holder is gone, it is made again from the task's bundles.

Rules: a worktree is used under a shared lock (`used`), and left or removed under an exclusive one. It is left only when all of it is in the
store, was read back from there, and holds no nested repository. A worktree that another host has gone on from is never used again: what
it holds that the store doesn't is kept as a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import structlog

from app.coord.requests import Requests
from app.core.errors import ByreError, Conflict, Unavailable
from app.git import locks, rebuild, resting, snapshots, submodules, worktrees
from app.git.bundles import Manifest
from app.git.repo import Repo, Rested, Worktree
from app.git.run import BYRE
from app.git.state import State
from app.git.vault import Vault
from app.services.writer import Clock
from app.store import keys, trash
from workers.repositories import Repositories
from workers.saving import Saver

LEAVE_SECONDS = 60.0
USED_SECONDS = 10.0
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Elsewhere(Unavailable):
    """A living host has the task's worktree and can't leave it: that host must do what is to be done."""


class Places:
    """The worktrees of one worker. `pool` saves in the background."""

    def __init__(self, repositories: Repositories, requests: Requests, clock: Clock, pool: Executor) -> None:
        self.repositories, self.requests, self._clock, self._pool = repositories, requests, clock, pool
        self.host = repositories.host
        self.released: Callable[[], None] = lambda: None
        """Called when a session has let go of a worktree."""

    def vault(self, task: Document) -> Vault:
        """The task's bundles."""
        return Vault(
            self.repositories.store, keys.task(task["tenant"], task["id"]), self.repositories.views.git.private / "scratch"
        )

    def saver(self, worktree: Worktree, task: Document, publish: Any) -> Saver:
        """What saves the work in a worktree that is here."""
        run, holds = self._clock.id, lambda: self.requests.holder(task["tenant"], task["id"]) in ("", self.host)
        return Saver(self.vault(task), worktree, task, self.host, run, self._pool, publish, holds)

    def path(self, task: Document) -> Path:
        """Where the task's worktree is when it is here."""
        return self.repositories.roots.workspaces / "tasks" / str(task["tenant"]) / str(task["id"])

    def used(self, task: Document) -> AbstractContextManager[None]:
        """Held by whoever works in the task's worktree."""
        return locks.held(self._lock(task), USED_SECONDS, shared=True)

    def unused(self, task: Document, seconds: float = USED_SECONDS) -> AbstractContextManager[None]:
        """Held by whoever removes the task's worktree. Raises Unavailable if it is used."""
        return locks.held(self._lock(task), seconds)

    def _lock(self, task: Document) -> Path:
        return self.repositories.views.git.private / "used" / str(task["id"])

    def here(self, project: Document, task: Document) -> Worktree | None:
        """The task's worktree, if it is here and is the one that counts. Raises Invalid, Unavailable."""
        repo = self.repositories.present(project)
        if repo is None:
            return None
        worktree = Worktree(repo, self.path(task), task["id"])
        if not worktrees.is_whole(worktree):
            return None
        holder = self.requests.holder(task["tenant"], task["id"])
        if holder != self.host:
            if holder or self._is_stale(worktree, self.vault(task).latest()):
                return None
            self.requests.holds(task["tenant"], task["id"], self.host)
        return worktree

    def enter(self, project: Document, task: Document) -> tuple[Worktree, list[str]]:
        """The task's worktree, brought here if need be, and notes. The caller holds `used`.

        Raises Invalid, Conflict, Unavailable, Corrupt.
        """
        found = self.here(project, task)
        if found:
            self.mend(found, task)
            return found, []
        self._ask_to_leave(project, task)
        notes: list[str] = []
        opened = self.repositories.opened(project)
        worktree = Worktree(opened.repo, self.path(task), task["id"])
        vault = self.vault(task)
        chain = vault.chain()
        self.repositories.have(project, opened, task["base_ref"])
        if worktrees.is_whole(worktree):
            if not self._is_stale(worktree, chain[-1] if chain else None):
                self.requests.holds(task["tenant"], task["id"], self.host)
                return worktree, []
            self._keep_aside(worktree)
            worktrees.leave(worktree)
        elif not worktree.git_dir.exists() and worktree.path.is_dir() and any(worktree.path.iterdir()):
            notes.append(f"files without their git directory were put aside at {self._put_aside(worktree)}")
        if chain:
            with vault.files(resting.missing(opened.repo, chain)) as files:
                parts = resting.parts(chain, files)
                made, more = rebuild.rebuild(opened.repo, worktree.path, task["id"], parts)
            notes += more
            (made.private / "saved").write_text(str(chain[-1]["seq"]))
        else:
            made = self._make_again(opened.repo, worktree, task)
        notes += submodules.fill(made, opened.origin, self.repositories.roots.repositories, self._access_for(project))
        self.requests.holds(task["tenant"], task["id"], self.host)
        logger.info("a task's worktree was made here", task=task["id"], notes=notes)
        return made, notes

    def mend(self, worktree: Worktree, task: Document) -> None:
        """Makes the task's branch again if somebody has deleted it under the worktree."""
        ref = f"refs/heads/{task['branch']}"
        if worktree.head() != (ref, None):
            return
        latest = self.vault(task).latest()
        tip = latest["branch_tip"] if latest else None
        if not tip or not worktree.repo.exists(tip):
            tip = task["base_ref"]
        worktree.repo.run("update-ref", ref, tip, "0" * len(tip))
        logger.warning("a task's branch was gone and was made again", task=task["id"], commit=tip)

    @contextmanager
    def rested(self, project: Document, task: Document) -> Iterator[tuple[Rested, State | None]]:
        """The task as it was saved last, looked at from here. Raises Invalid, Unavailable, Corrupt."""
        opened = self.repositories.opened(project)
        self.repositories.have(project, opened, task["base_ref"])
        with resting.rested(opened.repo, task["id"], task["branch"], task["base_ref"], self.vault(task)) as found:
            yield found

    def leave(self, project: Document, task: Document, seconds: float = USED_SECONDS) -> bool:
        """Saves the task's worktree and removes it here; False if there is none. Raises Conflict if it must stay, Unavailable."""
        with self.unused(task, seconds):
            worktree = self.here(project, task)
            if worktree is None:
                return False
            taken = snapshots.observe(worktree)
            if taken.looked.nested or taken.looked.left:
                raise Conflict("the worktree holds what no bundle can: nested repositories, or files that can't be read")
            saver = self.saver(worktree, task, lambda record: None)
            saver.offer(taken)
            saver.flush()
            vault = self.vault(task)
            vault.confirm(vault.chain())
            if snapshots.observe(worktree) != taken:
                raise Conflict("somebody works in the worktree")
            worktrees.leave(worktree)
            self.requests.gone(task["tenant"], task["id"])
        logger.info("a task's worktree was left", task=task["id"])
        return True

    def remove(self, project: Document, task: Document) -> list[str]:
        """Removes all of a closed task that is here: worktree, branch, refs. Gives what was left, and why. Raises Unavailable."""
        repo = self.repositories.present(project)
        if repo is None:
            return []
        with self.unused(task):
            left = worktrees.remove(Worktree(repo, self.path(task), task["id"]), task["branch"])
        self._lock(task).unlink(missing_ok=True)
        return left

    def discard(self, task: Document) -> None:
        """Moves what the store has of a closed task's work into the trash. Raises Unavailable."""
        self.vault(task).discard(self._clock.id())
        trash.Trash(self.repositories.store).delete(keys.task(task["tenant"], task["id"], "size.json"))

    def _ask_to_leave(self, project: Document, task: Document) -> None:
        """Asks the holder; after Redis has lost who that is, the host that has saved last. Raises Elsewhere if it doesn't leave."""
        holder = self.requests.holder(task["tenant"], task["id"])
        if not holder:
            latest = self.vault(task).latest()
            holder = latest["host"] if latest and self.requests.lives(latest["host"]) else ""
        if holder and holder != self.host:
            body = {"tenant": task["tenant"], "project": project, "task": task}
            try:
                self.requests.ask("task.leave", body, LEAVE_SECONDS, holder)
            except ByreError as error:
                raise Elsewhere(f"the task's worktree is on another host: {error.message}") from error

    def _is_stale(self, worktree: Worktree, latest: Manifest | None) -> bool:
        """Whether another host has gone on from where this worktree is."""
        if latest is None or latest["host"] == self.host:
            return False
        saved = worktree.private / "saved"
        return not saved.exists() or saved.read_text() != str(latest["seq"])

    def _keep_aside(self, worktree: Worktree) -> None:
        """Keeps what a stale worktree holds as a commit, at refs/byre/tasks/{id}/kept/."""
        try:
            taken = snapshots.observe(worktree)
            parents = ["-p", taken.state.head] if taken.state.head else []
            done = worktree.run("commit-tree", *parents, "-m", "byre kept", taken.looked.tree, environment=BYRE)
            worktree.run("update-ref", f"{snapshots.namespace(worktree.task)}kept/{done.text}", done.text)
        except ByreError as error:
            logger.warning("what a left-over worktree holds could not be kept", task=worktree.task, why=error.message)
            raise Unavailable("a left-over worktree of the task is in the way") from error

    def _put_aside(self, worktree: Worktree) -> Path:
        """Moves files that may be work, but of which git knows nothing any more, to where nothing removes them."""
        left = self.repositories.roots.workspaces / "left" / f"{worktree.task}-{self._clock.id()}"
        left.parent.mkdir(exist_ok=True, mode=0o700)
        worktree.path.rename(left)
        return left

    def _make_again(self, repo: Repo, worktree: Worktree, task: Document) -> Worktree:
        """A worktree of a task of which no bundle was ever made."""
        if worktree.git_dir.exists():
            worktrees.leave(worktree)
        tip = repo.tip(f"refs/heads/{task['branch']}") or task["base_ref"]
        return worktrees.create(repo, worktree.path, task["id"], task["branch"], tip)

    def _access_for(self, project: Document) -> submodules.AccessFor:
        return lambda remote: self.repositories.access(project, remote)
