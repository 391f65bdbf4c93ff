"""What byre owes a task, done by workers: the ends of its turns, its merge, the answers to its questions.

A task is looked at when somebody says that it is time (a turn ended, an answer was given, a merge was asked for), and from time to time
until nothing is owed to it any more. What is owed is in the store, so that it is known after anything is lost; a new
Redis is told of it by the first worker that meets it.

Rules: one look at a task at a time on a disk; a look does what can be done now and never waits for a turn; whatever fails is tried
again later, by whichever worker comes first. If the thread that looks dies the worker stops.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import structlog

from app.coord.coord import Coord
from app.coord.requests import Requests
from app.core.errors import ByreError, Conflict, Missing, Unavailable
from app.git import locks
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.turns import BUSY, LOOK_MS, Turns
from app.store import keys
from app.store.contract import Store, StoreError
from app.store.keys import LogName
from workers.delivery import Deliveries
from workers.ending import Endings
from workers.merging import Merger

AT_ONCE = 4
POLL_SECONDS = 1.0
AGAIN_MS = 30_000
"""A task that a worker has taken and says nothing more of is looked at by another after this time."""
ROUNDS = 20
LONGEST_MS = 300_000
MOST_FAILURES = 8
CLOSE_SECONDS = 8.0
"""For what is being done when the worker ends. A push that takes longer is cut off, and found out about by the next worker."""
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Follower:
    """One look at a task. `host` names this disk, `folder` is where its locks are."""

    def __init__(
        self,
        entities: Entities,
        inbox: Inbox,
        turns: Turns,
        endings: Endings,
        deliveries: Deliveries,
        merger: Merger,
        requests: Requests,
        store: Store,
        host: str,
        folder: Path,
    ) -> None:
        self._entities, self._inbox, self._turns = entities, inbox, turns
        self._endings, self._deliveries, self._merger = endings, deliveries, merger
        self._requests, self._store, self._host, self._folder = requests, store, host, folder

    def look(self, tenant: str, task_id: str) -> int | None:
        """Does what is owed to a task; gives the milliseconds until the next look, None if nothing is owed. Raises ByreError."""
        holder = self._requests.holder(tenant, task_id)
        if holder and holder != self._host:
            self._requests.tell("task.follow", {"tenant": tenant, "task": task_id}, LOOK_MS / 1000, holder)
            return LOOK_MS
        with locks.held(self._folder / task_id, 0.1):
            for _ in range(ROUNDS):
                try:
                    task = self._entities.get(tenant, keys.task(tenant, task_id), "task")
                except Missing:
                    self._closed(tenant, task_id)
                    return None
                if task["status"] != "active":
                    open_items = self._inbox.open_of_task(tenant, task_id, lambda item: "checkout" not in item["payload"])
                    self._inbox.supersede(tenant, open_items, task["status"])
                    self._closed(tenant, task_id)
                    return None
                delay = self._once(tenant, task)
                if delay != 0:
                    return delay
        return LOOK_MS

    def _once(self, tenant: str, task: Document) -> int | None:
        """One step; 0 if there may be another one."""
        records = self._turns.sessions(tenant, task["id"])
        busy = False
        for record in records:
            if record["completed"]:
                continue
            state = self._turns.log.state(LogName(tenant, record["id"]))
            if state.status in BUSY:
                busy = True
            elif state.ended and state.ended.id != record.get("settled"):
                self._endings.settle(tenant, task, record, state.ended)
                return 0
        if busy:
            return LOOK_MS
        if task.get("merge"):
            return self._merger.advance(tenant, task)
        if self._deliveries.deliver(tenant, task, records):
            return 0
        return self._settled(tenant, task["id"])

    def _settled(self, tenant: str, task_id: str) -> int | None:
        """Takes the task's mark away, unless something has begun meanwhile."""
        with self._turns.starting(tenant, task_id):
            task = self._entities.get(tenant, keys.task(tenant, task_id), "task")
            if task["status"] == "active" and self._turns.busy(tenant, task):
                return 0
            self._closed(tenant, task_id)
            return None

    def _closed(self, tenant: str, task_id: str) -> None:
        try:
            self._store.delete(keys.owed(tenant, task_id))
        except StoreError as error:
            raise Unavailable("the object store can't be reached") from error
        self._turns.owed.forget(tenant, task_id)


class Followups:
    """Looks at tasks in the background, several at once. `failed` is called if the thread dies."""

    def __init__(self, follower: Follower, turns: Turns, coord: Coord, store: Store, failed: Callable[[], None]) -> None:
        self._follower, self._owed, self._coord, self._store, self._failed = follower, turns.owed, coord, store, failed
        self._inc = ""
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="follow")
        self._running: dict[tuple[str, str], bool] = {}
        """Tasks that are being looked at; True if they are to be looked at once more."""
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._busy = 0
        self._failures: dict[tuple[str, str], int] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follow", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends it, and waits a while for what is being done: whoever comes next goes on with what isn't."""
        with self._lock:
            self._closed.set()
        self._thread.join(5)
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._idle:
            self._idle.wait_for(lambda: not self._busy, CLOSE_SECONDS)

    def poke(self, tenant: str, task: str) -> None:
        """Has the task looked at now."""
        with self._lock:
            if self._closed.is_set():
                return
            if (tenant, task) in self._running:
                self._running[(tenant, task)] = True
                return
            self._running[(tenant, task)] = False
            self._pool.submit(self._look, tenant, task)

    def handle(self, body: Document) -> None:
        """Serves the request `task.follow`."""
        self.poke(body["tenant"], body["task"])

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                try:
                    self._recover()
                    for tenant, task in self._owed.take(AGAIN_MS):
                        self.poke(tenant, task)
                except (Unavailable, StoreError) as error:
                    logger.debug("tasks not looked for", why=str(error))
                self._closed.wait(POLL_SECONDS)
        except Exception:
            logger.exception("the thread that looks for tasks died")
            self._failed()

    def _recover(self) -> None:
        """Tells a Redis that doesn't know it, and at the start of a worker, which tasks something is owed to."""
        inc = self._coord.incarnation()
        if inc == self._inc:
            return
        after = ""
        while tenants := self._store.list_dirs(keys.tenants_prefix(), start_after=after):
            for tenant in tenants:
                self._recover_tenant(tenant)
            after = tenants[-1]
        self._inc = inc

    def _recover_tenant(self, tenant: str) -> None:
        after, prefix = "", keys.owed_prefix(tenant)
        while page := self._store.list(prefix, start_after=after):
            for key in page:
                self._owed.soon(tenant, keys.last_part(key))
            after = page[-1]

    def _look(self, tenant: str, task: str) -> None:
        with self._lock:
            self._busy += 1
            failed = self._failures.pop((tenant, task), 0)
        # what fails again and again is asked for less and less often
        delay: int | None = min(LOOK_MS * 2**failed, LONGEST_MS)
        try:
            delay = self._follower.look(tenant, task)
        except (Unavailable, Conflict) as error:
            logger.info("a task is looked at again", task=task, why=error.message)
        except ByreError as error:
            self._failures[(tenant, task)] = min(failed + 1, MOST_FAILURES)
            logger.warning("what is owed to a task can't be done", task=task, why=error.message)
        except Exception:
            self._failures[(tenant, task)] = min(failed + 1, MOST_FAILURES)
            logger.exception("a look at a task failed", task=task)
        finally:
            with self._idle:
                again = self._running.pop((tenant, task), False)
                self._busy -= 1
                self._idle.notify_all()
        try:
            if delay is not None:
                self._owed.again(tenant, task, delay)
        except Unavailable:
            logger.debug("the next look at a task is not noted", task=task)
        if again:
            self.poke(tenant, task)
