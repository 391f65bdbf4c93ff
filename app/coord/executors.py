"""Routing of calls to executors: from any worker to the API process that holds the executor's connection, and back.

Rules: an executor has one current connection; a call is queued for the connection that is current when it is made and never for a later
one; taking it from that queue is its dispatch. A connection that goes (closed, replaced, or silent for `CONNECTION_MS`) settles its open
calls: unknown outcome if they were dispatched, not sent otherwise. Pub/sub only wakes; lists and hashes hold what counts.
"""

from __future__ import annotations

from app.coord.scripts import Scripts

CONNECTION_MS = 30_000
"""A connection that its API process doesn't confirm for this long is gone."""
KEEP_MS = 15 * 60_000
MOST_CALLS = 1000


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

    def keep(self, executor: str, connection: str) -> bool:
        """Confirms the connection; False if it isn't the current one any more."""
        return bool(self._run("exec_keep", executor, connection, CONNECTION_MS))

    def drop(self, executor: str, connection: str = "") -> None:
        """The connection (empty: the current one) is gone; its open calls are settled."""
        self._run("exec_drop", executor, connection, KEEP_MS)

    def take(self, executor: str, connection: str, count: int = 64) -> list[bytes] | None:
        """Commands to send now, as JSON; None if another connection has taken over."""
        taken = self._run("exec_take", executor, connection, count)
        return None if taken == b"GONE" else list(taken)

    def call(self, executor: str, call: str, worker: str, command: bytes, keep_ms: int) -> str | None:
        """Queues a call; the connection that it is for, "" if there is none, None if too many calls are open."""
        conn = self._run("exec_call", executor, call, worker, command, keep_ms, MOST_CALLS).decode()
        return None if conn == "FULL" else conn

    def reply(self, executor: str, connection: str, call: str, kind: str, payload: bytes) -> bool:
        """Progress (`P`) or the result (`R`); False for a stale connection, and a call that isn't open (any more)."""
        return bool(self._run("exec_reply", executor, connection, call, kind, payload, KEEP_MS))

    def cancel(self, executor: str, call: str, command: bytes) -> bool:
        """Nobody waits for this call any more; False if it isn't open: its answer is there, or gone."""
        return bool(self._run("exec_cancel", executor, call, command, KEEP_MS))

    def probe(self, executor: str, call: str) -> bool:
        """Settles a call whose connection ran out; False if Redis knows nothing of it."""
        return bool(self._run("exec_probe", executor, call))

    def answers(self, call: str) -> list[bytes]:
        """What has come for a call since the last look: `P`+progress, `R`+result, `U` (unknown outcome), `N` (not sent)."""
        return list(self._run("exec_answers", call))
