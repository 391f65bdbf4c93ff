"""A worker's signs of life: which sessions it holds, with their processes, and which processes are left of sessions that it doesn't hold.

Rules: a process that no session of this worker has twice in a row is killed; its owner is remembered from when it had one. What is said is
for people; nothing waits for it, and a beat that can't be given is left out. If the thread dies the worker stops.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import structlog

from app.coord.board import BEAT_SECONDS, Board
from app.core.errors import Unavailable
from app.log.log import now_text
from workers.lives import StillAlive
from workers.pool import Pool
from workers.process import Child, Guardian, GuardianLost
from workers.protocol_errors import ProtocolErrors
from workers.runner import Runner

KILL_SECONDS = 1.0
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class Heartbeat:
    """Of one worker, `worker` being its name."""

    def __init__(
        self,
        board: Board,
        worker: str,
        pool: Pool,
        guardian: Guardian,
        errors: ProtocolErrors,
        failed: Callable[[], None],
    ) -> None:
        self._board, self._worker, self._pool, self._guardian = board, worker, pool, guardian
        self._errors, self._failed = errors, failed
        self._owners: dict[int, Document] = {}
        self._bare: dict[str, float] = {}
        self._suspects: set[int] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self) -> None:
        """Ends it, and says so."""
        self._closed.set()
        self._thread.join(5)
        try:
            self._board.gone("worker", self._worker)
        except Unavailable:
            logger.debug("the end of a worker isn't announced")

    def _run(self) -> None:
        try:
            while not self._closed.is_set():
                doc = self.look()
                try:
                    self._board.beat("worker", self._worker, doc)
                    self._tell_errors()
                except Unavailable:
                    logger.debug("no sign of life given")
                self._closed.wait(BEAT_SECONDS)
        except Exception:
            logger.exception("the heartbeat died")
            self._failed()

    def look(self) -> Document:
        """What this worker has now; kills what nobody has."""
        children = {child.pid: child for child in self._guardian.children() if child.pid}
        held = [self._held(runner) for runner in self._pool.held()]
        owned = {each["pid"]: each for each in held if each["pid"]}
        self._owners = {pid: owned.get(pid) or self._owners[pid] for pid in children if pid in owned or pid in self._owners}
        strays = set(children) - set(owned)
        for pid in strays & self._suspects:
            self._kill(children[pid])
        # it may have been started, or given up, while we looked
        certain, self._suspects = strays & self._suspects, strays
        return {"held": held, "strays": [self._stray(pid) for pid in sorted(certain)]}

    def _held(self, runner: Runner) -> Document:
        host, name, now = runner.host, runner.name, time.monotonic()
        alive = host is not None and host.child.wait(0) is None
        since = self._bare.pop(name.text, now)
        if not alive:
            self._bare[name.text] = since
        silent = max(0.0, now - host.heard) if host else 0.0
        return {
            "log": name.text,
            "tenant": name.tenant,
            "session_id": name.session,
            "task_id": runner.task_id,
            "vendor": host.adapter.name if host else "",
            "pid": host.child.pid if host else 0,
            "exited": bool(host) and not alive,
            "bare_seconds": now - since,
            "silent": silent,
            "last_event_at": now_text(time.time() - silent),
        }

    def _kill(self, child: Child) -> None:
        logger.warning("an agent process without a session is killed", pid=child.pid)
        try:
            child.kill(KILL_SECONDS)
        except (StillAlive, GuardianLost) as error:
            logger.error("it may still run", pid=child.pid, why=str(error))

    def _stray(self, pid: int) -> Document:
        owner = self._owners.get(pid, {})
        return {"pid": pid, **{name: owner.get(name, "") for name in ("tenant", "session_id", "task_id")}}

    def _tell_errors(self) -> None:
        by_tenant: dict[str, list[Document]] = defaultdict(list)
        taken, counts = self._errors.take()
        for kept in taken:
            by_tenant[kept.tenant].append(
                {
                    "vendor": kept.vendor,
                    "session_id": kept.session,
                    "at": now_text(kept.at),
                    "reason": kept.reason,
                    "raw": kept.raw.decode(errors="replace"),
                    "size": kept.size,
                }
            )
        for tenant in {tenant for tenant, _ in counts}:
            mine = {vendor: count for (whose, vendor), count in counts.items() if whose == tenant}
            self._board.errors(tenant, mine, by_tenant[tenant])
