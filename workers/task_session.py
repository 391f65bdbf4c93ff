"""An agent session in a task's worktree: mirrored into the workspace log, with a snapshot of the worktree after what the agent did.

Rules: a snapshot is taken after tool calls, at a turn's end, when a person is asked, and on a timer while a turn runs; an unchanged
tree makes none. The turn's last snapshot is there before the turn ends in the log, so a session that is seen idle has it. A snapshot
that fails never ends a turn.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from app.core.errors import ByreError, Conflict
from app.git import changes, snapshots
from app.git.repo import Worktree
from app.services.entities import Entities
from app.services.tasks import happening
from app.services.writer import Clock
from app.store import keys
from app.store.keys import LogName
from workers.bridge.outputs import BridgeResult
from workers.harness.base import ToolResult
from workers.mailbox import Anything
from workers.mirror import Mirror
from workers.tasks import TaskWork

TIMER_SECONDS = 30.0
"""Bounds what is lost with a worker: at most this much of a turn's work, or what was done since the last tool call."""
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class TaskSession:
    """What a session's runner does for its task. Used by the runner's thread only."""

    def __init__(
        self, work: TaskWork, entities: Entities, clock: Clock, mirror: Mirror, name: LogName, about: Document
    ) -> None:
        self._entities, self._clock, self._mirror, self._name = entities, clock, mirror, name
        self.task = entities.get(name.tenant, keys.task(name.tenant, about["task_id"]), "task")
        if self.task["status"] != "active":
            raise Conflict(f"the task is {self.task['status']}")
        project = entities.get(name.tenant, keys.project(name.tenant, about["project_id"]), "project")
        self._worktree: Worktree = work.worktree(project, self.task)
        self._n, self._tree = self._latest()
        self._taken = time.monotonic()
        mirror.open()

    @property
    def path(self) -> Path:
        """Where the agent works."""
        return self._worktree.path

    def _latest(self) -> tuple[int, str]:
        found = self._entities.listed(keys.snapshots_prefix(self._name.tenant, self.task["id"]))
        if not found:
            return 0, changes.tree_of(self._worktree.repo, self.task["base_ref"])
        last = self._entities.get(self._name.tenant, found[-1], "snapshot")
        return last["n"], last["tree_sha"]

    def started(self) -> None:
        """A turn has begun."""
        self._mirror.catch_up()

    def wrote(self, outputs: Sequence[Anything]) -> None:
        """Outputs are in the session's log."""
        self._mirror.catch_up()
        if any(isinstance(o, ToolResult | BridgeResult) for o in outputs):
            self.snapshot("tool_call")
        elif time.monotonic() - self._taken > TIMER_SECONDS:
            self.snapshot("timer")

    def ending(self) -> None:
        """The turn is about to be settled."""
        self.snapshot("turn_end")

    def settled(self) -> None:
        """The turn's end is in the session's log."""
        self._mirror.catch_up()
        self._mirror.archive()

    def snapshot(self, trigger: str) -> None:
        """Takes a snapshot if the tree has changed."""
        self._taken = time.monotonic()
        seq, now = self._mirror.seq, self._clock.text()
        try:
            taken = snapshots.take(self._worktree, self._n + 1, self._tree)
        except (ByreError, OSError) as error:
            logger.warning("no snapshot", task=self.task["id"], trigger=trigger, why=str(error))
            return
        if taken.snapshot is None:
            return
        record = {
            "id": self._clock.id(),
            "task_id": self.task["id"],
            "agent_session_id": self._name.session,
            "n": taken.snapshot.n,
            "commit_sha": taken.snapshot.commit,
            "tree_sha": taken.snapshot.tree,
            "event_seq": seq,
            "trigger": trigger,
            "created_at": now,
        }
        payload = {"snapshot_id": record["id"], **{k: record[k] for k in ("n", "commit_sha", "tree_sha", "trigger")}}
        happened = happening(self.task, "snapshot.created", now, "byre", payload, self._name.session or "")
        key = keys.snapshot(self._name.tenant, self.task["id"], taken.snapshot.n)
        self._entities.create(self._name.tenant, key, record, [happened])
        self._n, self._tree = taken.snapshot.n, taken.snapshot.tree
