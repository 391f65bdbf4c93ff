"""The workspace log as a live stream: each event's id is its `seq`."""

from __future__ import annotations

from typing import Any

import orjson

from app.core.errors import Missing
from app.core.principal import Principal
from app.log.follower import Follower
from app.log.hub import Hub
from app.services.tasks import Tasks
from app.services.workspace_log import WorkspaceLog, shown
from app.store import keys
from app.store.keys import LogName


class WorkspaceEvents:
    """Opens streams of a tenant's workspace events."""

    def __init__(self, hub: Hub, log: WorkspaceLog, tasks: Tasks) -> None:
        self._hub, self._log, self._tasks = hub, log, tasks

    def stream(self, principal: Principal, after: int | None, task_id: str | None) -> WorkspaceStream:
        """Events after `seq` (None: only what comes), of one task if it is given. Raises Missing for an unknown task."""
        if task_id:
            if not keys.is_id(task_id):
                raise Missing("no such task")
            self._tasks.record(principal.tenant, task_id)
        self._log.ensure(principal.tenant)
        name = LogName(principal.tenant, None)
        last = self._log.last(principal.tenant)
        seq = last if after is None else min(max(after, 0), last)
        try:
            position = self._log.log.position(name, seq - 1)
        except Missing:
            raise Missing("no such workspace") from None
        return WorkspaceStream(self._hub.follow(name, position), task_id)


class WorkspaceStream:
    """A follower whose frames are byre's events."""

    def __init__(self, follower: Follower, task_id: str | None) -> None:
        self._follower = follower
        self._needle = f'"task_id":"{task_id}"'.encode() if task_id else b""

    def read(self, timeout: float) -> bytes:
        """The next events as server-sent events; empty when `timeout` passes. Raises EOFError."""
        frames: list[bytes] = []
        for entry in self._follower.entries(timeout):
            if self._needle in entry.raw:
                event: dict[str, Any] = shown(entry)
                frames.append(b"id: %d\nevent: %b\ndata: %b\n\n" % (event["seq"], event["kind"].encode(), orjson.dumps(event)))
        return b"".join(frames)

    def close(self) -> None:
        """Ends it."""
        self._follower.close()
