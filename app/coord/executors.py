"""Routing of calls to executors: from any worker to the API process that holds the executor's connection, and back.

Rules: an executor has one current connection; a call is queued for the connection that is current when it is made and never for a later
one; taking it from that queue is its dispatch. A connection that goes (closed, replaced, or silent for `CONNECTION_MS`) settles its open
calls: unknown outcome if they were dispatched, not sent otherwise. Pub/sub only wakes; lists and hashes hold what counts.
"""

from __future__ import annotations

from enum import Enum

from app.coord.scripts import Scripts

CONNECTION_MS = 15_000
"""A connection whose API process doesn't ask for its commands for this long is gone."""
KEEP_MS = 15 * 60_000
MOST_CALLS = 1000
MOST_PROGRESS = 64
"""Reports of a call that may wait for its worker."""


class Gone(Enum):
    """Why a connection isn't the current one: another one is, or none."""

    REPLACED = "GONE"
    ENDED = "NONE"


class Taken(Enum):
    """What became of a reply. STALE: the connection is, or the call isn't open (any more). FULL: too much progress waits."""

    STALE = 0
    OK = 1
    FULL = 2


class Cancelled(Enum):
    """What became of a cancelled call. NOT_OPEN: its answer is there, or gone."""

    NOT_OPEN = 0
    TOLD = 1
    NEVER_SENT = 2


class ExecutorRouting:
    """All executors of a deployment. Every method raises Unavailable if Redis can't be reached."""

    def __init__(self, scripts: Scripts) -> None:
        self._run, self._prefix = scripts.run, scripts.prefix

    def channel(self, executor: str) -> str:
        """Where an executor's API process is woken: `call`, `connected ID`, `dropped ID`."""
        return f"{self._prefix}:exec:{executor}:ch"

    def answers_channel(self, worker: str) -> str:
        """Where a worker is woken: the call id."""
        return f"{self._prefix}:answers:ch:{worker}"

    def connect(self, executor: str, connection: str) -> None:
        """`connection` becomes the current one; open calls of the one before it are settled."""
        self._run("exec_connect", executor, connection, CONNECTION_MS)

    def current(self, executor: str) -> bool:
        """Whether there is a current connection."""
        return bool(self._run("exec_current", executor))

    def drop(self, executor: str, connection: str = "") -> None:
        """The connection (empty: the current one) is gone; its open calls are settled."""
        self._run("exec_drop", executor, connection, KEEP_MS)

    def take(self, executor: str, connection: str, count: int = 64) -> list[bytes] | Gone:
        """Commands to send now, as JSON, or why there will be none any more. Confirms the connection for `CONNECTION_MS`."""
        taken = self._run("exec_take", executor, connection, count, CONNECTION_MS)
        return Gone(taken.decode()) if isinstance(taken, bytes) else list(taken)

    def call(self, executor: str, call: str, worker: str, command: bytes, keep_ms: int) -> str | None:
        """Queues a call; the connection that it is for, "" if there is none, None if too many calls are open."""
        conn = self._run("exec_call", executor, call, worker, command, keep_ms, MOST_CALLS).decode()
        return None if conn == "FULL" else conn

    def reply(self, executor: str, connection: str, call: str, kind: str, payload: bytes) -> Taken:
        """Progress (`P`) or the result (`R`)."""
        return Taken(self._run("exec_reply", executor, connection, call, kind, payload, KEEP_MS, MOST_PROGRESS))

    def cancel(self, executor: str, call: str, command: bytes) -> Cancelled:
        """Nobody waits for this call any more; its connection is told with `command` if it had it."""
        return Cancelled(self._run("exec_cancel", executor, call, command, KEEP_MS))

    def probe(self, executor: str, call: str) -> bool:
        """Settles a call whose connection ran out; False if Redis knows nothing of it."""
        return bool(self._run("exec_probe", executor, call))

    def answers(self, call: str) -> list[bytes]:
        """What has come for a call since the last look: `P`+progress, `R`+result, `U` (unknown outcome), `N` (not sent)."""
        return list(self._run("exec_answers", call))
