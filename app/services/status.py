"""The state of the deployment as one tenant may see it: what runs and waits, which agent processes there are, what went wrong.

It is put together from the signs of life of workers and API processes, from the queue, and from what the store holds. Rules: nothing of
another tenant is in it; sessions of Brain, which have no task, aren't byre's and are left out; what is not known in `SECONDS` is left for
the next time, so that a large tenant's answer comes late by nothing but its figures.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from app.coord.board import Board, Overview, Waiting
from app.core.errors import ByreError
from app.core.principal import Principal
from app.log.log import Log
from app.services.entities import Entities
from app.services.workspace_log import WorkspaceLog
from app.store import keys
from app.store.keys import LogName, parse_log_name

GRACE_MS = 12_000
"""A session that has had a slot for so long is in its worker's signs of life, or has no worker."""
SECONDS = 2.0
FRESH_SECONDS = 60.0
"""How old the size of a session's archive may be."""
MOST_KNOWN = 50_000
Document = dict[str, Any]
Documents = list[Document]


class Bounds(NamedTuple):
    """What the deployment is set to."""

    cap: int
    per_vendor: Mapping[str, int]
    stuck_after: float


class Status:
    """`size` gives the archived bytes of a log."""

    def __init__(
        self,
        board: Board,
        log: Log,
        workspace: WorkspaceLog,
        entities: Entities,
        size: Callable[[LogName], int],
        bounds: Bounds,
    ) -> None:
        self._board, self._log, self._workspace, self._entities, self._bounds = board, log, workspace, entities, bounds
        self._size = size
        self._lock = threading.Lock()
        self._tasks: OrderedDict[str, str] = OrderedDict()
        self._closed: OrderedDict[str, None] = OrderedDict()
        self._sizes: OrderedDict[LogName, tuple[float, int]] = OrderedDict()

    def get(self, principal: Principal) -> Document:
        """The contract's Status. Raises Unavailable."""
        tenant = principal.tenant
        workers, apis = self._board.beats("worker"), self._board.beats("api")
        held = [each for worker in workers for each in worker["held"] if each["tenant"] == tenant]
        ours = [each for each in held if each["task_id"]]
        seen = self._board.overview(tenant, [each["log"] for each in ours])
        states = dict(zip((each["log"] for each in ours), seen.states, strict=True))
        processes = [self._process(each, states[each["log"]]) for each in ours if each["pid"]]
        until = time.monotonic() + SECONDS
        return {
            "started_at": min((api["started_at"] for api in apis), default=""),
            "sse_clients": sum(api["streams"].get(tenant, 0) for api in apis),
            "db_bytes": self._bytes(tenant, until),
            "last_event_seq": self._workspace.last(tenant),
            "projects": sum(1 for _ in self._entities.names(keys.projects_prefix(tenant))),
            "active_tasks": self._active(tenant),
            "live_agents": sum(process["health"] != "exited" for process in processes),
            "running_turns": self._turns(sorted(_running(seen), key=lambda row: row.log)),
            "queued_turns": self._turns([*_starting(seen), *seen.queued]),
            "caps": {"global": self._bounds.cap, "per_vendor": dict(self._bounds.per_vendor)},
            "rate_limits": self._board.limits(tenant),
            "agent_processes": processes,
            "zombies": [*self._without_process(seen, held), *_without_session(workers, tenant)],
            "stuck_after_seconds": int(self._bounds.stuck_after),
            "protocol_errors": self._board.protocol_errors(tenant),
        }

    def _process(self, each: Document, status: str) -> Document:
        silent = each["silent"]
        stuck = status == "running" and silent >= self._bounds.stuck_after
        return {
            "session_id": each["session_id"],
            "task_id": each["task_id"],
            "vendor": each["vendor"],
            "pid": each["pid"],
            "state": status if status in ("queued", "running") else "idle",
            "last_event_at": each["last_event_at"],
            "health": "exited" if each["exited"] else "stuck" if stuck else "ok",
        }

    def _turns(self, rows: Iterable[Waiting]) -> Documents:
        found = []
        for row in rows:
            name = parse_log_name(row.log)
            task = self._task(name)
            if task:
                found.append({"session_id": name.session, "task_id": task, "vendor": row.vendor})
        return found

    def _without_process(self, seen: Overview, held: Documents) -> Documents:
        """Sessions that are running, as far as the log says, while no living worker has a process for them."""
        alive = {each["log"] for each in held if each["pid"] and not each["exited"]}
        near = {each["log"] for each in held if each["bare_seconds"] * 1000 < GRACE_MS}
        found = []
        for row in _running(seen):
            if row.log in alive or row.log in near or seen.now - row.since < GRACE_MS:
                continue
            name = parse_log_name(row.log)
            task = self._task(name)
            if task:
                why = "a turn runs and no worker has a process for it; it is taken over when its lease has run out"
                found.append({"kind": "running_without_process", "detail": why, "session_id": name.session, "task_id": task})
        return found

    def _task(self, name: LogName) -> str:
        """The task of a session; empty if it has none. It never changes."""
        with self._lock:
            known = self._tasks.get(name.text)
        if known is None:
            try:
                known = (self._log.head(name).doc.get("task") or {}).get("task_id", "")
            except ByreError:
                return ""
            self._keep(self._tasks, name.text, known)
        return known

    def _active(self, tenant: str) -> int:
        """How many tasks are active; those that are known to be closed aren't read again."""
        wanted = [keys.task(tenant, task) for task in self._entities.names(keys.tasks_prefix(tenant))]
        with self._lock:
            wanted = [key for key in wanted if key not in self._closed]
        active = 0
        for doc in self._entities.many(tenant, wanted):
            if doc["status"] == "active":
                active += 1
            else:
                self._keep(self._closed, keys.task(tenant, doc["id"]), None)
        return active

    def _bytes(self, tenant: str, until: float) -> int:
        names = [LogName(tenant, None)]
        names += [LogName(tenant, session) for session in self._entities.names(keys.sessions_prefix(tenant))]
        total = 0
        for name in names:
            with self._lock:
                at, size = self._sizes.get(name, (float("-inf"), 0))
            now = time.monotonic()
            if now - at > FRESH_SECONDS and now < until:
                with contextlib.suppress(ByreError):  # the last figure, or none, will do
                    size = self._size(name)
                self._keep(self._sizes, name, (now, size))
            total += size
        return total

    def _keep(self, known: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        with self._lock:
            known[key] = value
            while len(known) > MOST_KNOWN:
                known.popitem(last=False)


def _running(seen: Overview) -> list[Waiting]:
    return [row for row in seen.running if row.status == "running"]


def _starting(seen: Overview) -> list[Waiting]:
    """They have a slot, and their turn begins at any moment."""
    return [row for row in seen.running if row.status == "queued"]


def _without_session(workers: Documents, tenant: str) -> Documents:
    found = []
    for stray in (each for worker in workers for each in worker["strays"] if each["tenant"] == tenant and each["task_id"]):
        why = "an agent process is left of a session that its worker doesn't hold any more; it is being killed"
        found.append(
            {
                "kind": "process_without_session",
                "detail": why,
                "pid": stray["pid"],
                "session_id": stray["session_id"],
                "task_id": stray["task_id"],
            }
        )
    return found
