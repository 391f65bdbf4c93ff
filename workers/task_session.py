"""An agent session in a task's worktree: mirrored into the workspace log, with a snapshot of the worktree after what the agent did.

Rules: a snapshot is taken after tool calls, at a turn's end, when a person is asked, and on a timer while a turn runs; an unchanged
tree makes none. The turn's last snapshot is in the store before the turn ends in the log, so a session that is seen idle has it. A
snapshot that fails never ends a turn.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from app.core.errors import ByreError, Conflict, Missing
from app.core.redact import Redactor
from app.git import changes, snapshots, worktrees
from app.log.heads import LogHead
from app.services.entities import Entities
from app.services.model_keys import secret_values
from app.services.tasks import happening
from app.services.users import Users
from app.services.writer import Clock
from app.store import keys
from app.store.keys import LogName
from workers import setup
from workers.bridge.outputs import BridgeCall, BridgeResult
from workers.harness.base import Image, ToolCall, ToolResult
from workers.lease import Lease
from workers.mailbox import Anything
from workers.mirror import Mirror
from workers.people import People
from workers.places import Places
from workers.process import Guardian

TIMER_SECONDS = 30.0
"""Bounds what is lost with a worker and its disk: what was done since the last tool call, and at most this much of a turn's work."""
NOBODY = ("Byre", "byre@localhost")
"""Whose commits are those of agents for people without a git identity."""
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class TaskSession:
    """What a session's runner does for its task. Used by the runner's thread only, which closes it."""

    def __init__(
        self,
        places: Places,
        entities: Entities,
        users: Users,
        clock: Clock,
        mirror: Mirror,
        name: LogName,
        head: LogHead,
        people: People,
    ) -> None:
        self._people = people
        self._asked: set[str] = set()
        self._entities, self._users, self._clock, self._mirror, self._name = entities, users, clock, mirror, name
        about = head.doc["task"]
        self._creator = str(head.doc["created_by"])
        self.task = {**entities.get(name.tenant, keys.task(name.tenant, about["task_id"]), "task"), "tenant": name.tenant}
        if self.task["status"] != "active":
            raise Conflict(f"the task is {self.task['status']}")
        project = entities.get(name.tenant, keys.project(name.tenant, about["project_id"]), "project")
        self.project: Document = {**project, "tenant": name.tenant}
        self._open = contextlib.ExitStack()
        self._places, self._released = places, places.released
        try:
            self._open.enter_context(places.used(self.task))
            self._enter()
            mirror.open()
        except BaseException:
            self._open.close()
            raise

    def _enter(self) -> None:
        self._worktree, self.notes = self._places.enter(self.project, self.task)
        self._settings = self._places.repositories.settings(self.project)
        self._saver = self._places.saver(self._worktree, self.task, self._publish)
        self._n, self._tree = self._latest()
        snapshots.forget_after(self._worktree, self._n)
        self._taken = time.monotonic()

    def renew(self) -> bool:
        """Before a turn: makes the worktree again if it is no longer whole; True if so. Raises Invalid, Conflict, Unavailable, Corrupt."""
        if worktrees.is_whole(self._worktree):
            self._places.mend(self._worktree, self.task)
            return False
        logger.warning("a task's worktree is gone and is made again", task=self.task["id"])
        self._enter()
        return True

    @property
    def path(self) -> Path:
        """Where the agent works."""
        return self._worktree.path

    def environment(self) -> Mapping[str, str]:
        """What the agent's process is given beside its own: the project's environment, and whose commits its are. Raises Unavailable."""
        user = self._users.get(self._name.tenant, self._creator)
        who = (user["git_name"], user["git_email"]) if user["git_email"] else NOBODY
        return {**self._settings.environment, **worktrees.identity(*who)}

    def set_up(self, guardian: Guardian, lease: Lease, home: Path, search_path: str, stopped: Callable[[], bool]) -> None:
        """Runs the project's set-up command in a worktree in which it hasn't run. Raises GuardianLost, StillAlive, Unavailable."""
        done = self._worktree.private / "set-up"
        if not self._settings.setup or done.exists():
            return
        given = {"PATH": search_path, "HOME": str(home), "LANG": "C.UTF-8", **self.environment()}
        command, seconds = self._settings.setup, self._settings.seconds
        ended = setup.run(guardian, lease, command, self.path, given, seconds, stopped)
        if ended is None:
            return
        done.touch()
        mask = Redactor(secret_values(self._settings.environment))
        payload: Document = {"command": command, "exit_status": ended.exit_status, "output": mask.text(ended.output)}
        if ended.truncated:
            payload["truncated"] = True
        happened = happening(self.task, "task.setup", self._clock.text(), "byre", payload, self._name.session or "")
        self._entities.change(self._name.tenant, keys.task(self._name.tenant, self.task["id"]), lambda doc: (doc, [happened]))

    def alone(self) -> None:
        """An agent is about to be started, and none runs: what a killed one's git has left locked is unlocked."""
        left = worktrees.break_locks(self._worktree, self.task["branch"])
        if left:
            logger.info("locks of a killed git removed", task=self.task["id"], locks=left)

    def close(self) -> None:
        """Lets go of the worktree: others may have it moved."""
        self._open.close()
        self._released()

    def _latest(self) -> tuple[int, str]:
        """Number and tree of the last snapshot; one that was saved by a worker which died before it told of it is told of now."""
        for record in (self._saver.previous or {}).get("records", ()):
            self._publish(record)
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
        for output in outputs:
            if isinstance(output, ToolCall):
                self._people.asked(self._name, self.task["id"], output)
        self._asked |= {o.id for o in outputs if isinstance(o, BridgeCall) and o.name == "ask_human"}
        ended = [o.id for o in outputs if isinstance(o, ToolResult | BridgeResult)]
        if ended:
            self.snapshot("ask_human" if self._asked.intersection(ended) else "tool_call")
            self._asked.difference_update(ended)

    def images(self, ids: Sequence[str]) -> tuple[Image, ...]:
        """The images that go with a message, as far as they can be read."""
        return self._people.images(self._name.tenant, ids)

    def tick(self) -> float:
        """Takes a snapshot, or saves one, if it is time. Gives the seconds until the next call is due."""
        if time.monotonic() - self._taken > TIMER_SECONDS:
            self.snapshot("timer")
        self._saver.tick()
        return min(self._saver.due(), self._taken + TIMER_SECONDS - time.monotonic() + 0.01)

    def ending(self, turn: str, kind: str, data: Document) -> None:
        """The turn is about to be settled by an event of type `kind`. Raises Unavailable."""
        self.snapshot("turn_end")
        try:
            self._saver.flush()
        except ByreError as error:
            logger.error("a turn ends whose work isn't in the store", task=self.task["id"], why=error.message)
        if kind == "rate_limited":
            self._people.limited(self._name, self.task["id"], turn, data)

    def settled(self) -> None:
        """The turn's end is in the session's log."""
        self._mirror.catch_up()
        self._mirror.archive()
        self._people.ended(self._name.tenant, self.task["id"])

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
            self._saver.offer(taken)
            return
        self._n, self._tree = taken.snapshot.n, taken.snapshot.tree
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
        self._saver.offer(taken, record)

    def _publish(self, record: Document) -> None:
        """Tells of a snapshot, once."""
        key = keys.snapshot(self._name.tenant, self.task["id"], record["n"])
        with contextlib.suppress(Missing):
            self._entities.get(self._name.tenant, key, "snapshot")
            return
        payload = {"snapshot_id": record["id"], **{k: record[k] for k in ("n", "commit_sha", "tree_sha", "trigger")}}
        session = str(record["agent_session_id"])
        happened = happening(self.task, "snapshot.created", self._clock.text(), "byre", payload, session)
        with contextlib.suppress(Conflict):
            self._entities.create(self._name.tenant, key, record, [happened])
