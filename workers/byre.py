"""byre's half of a worker, put together: requests that need a repository, and sessions in worktrees."""

from __future__ import annotations

import secrets
from pathlib import Path

import redis

from app.coord.requests import Requests
from app.git.run import Git, write_once
from app.git.view import Views
from app.log.heads import LogHead
from app.log.log import Log
from app.services.entities import Entities
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.settings import Settings
from app.store.keys import LogName
from workers.mirror import Mirror
from workers.task_session import TaskSession
from workers.tasks import Roots, TaskWork


class ByreHalf:
    """Parts of one worker. `host` is the same for all workers that share BYRE_WORKSPACES."""

    def __init__(self, settings: Settings, client: redis.Redis, requests: Requests, log: Log) -> None:
        self._redis, self._prefix, self._log = client, settings.redis_prefix, log
        self._workspace = WorkspaceLog(log)
        self._entities = Entities(log.store, self._workspace)
        self._clock = Clock()
        self.host = _host(settings.workspaces)
        self.requests = requests
        views = Views(Git(settings.workspaces / "git"), settings.repo_roots)
        roots = Roots(settings.repo_roots, settings.workspaces)
        self.work = TaskWork(views, roots, self._entities, self.requests, self.host, self._clock)

    def session(self, name: LogName, head: LogHead) -> TaskSession:
        """What the runner of a session in a task's worktree needs. Raises Missing, Conflict, Unavailable."""
        about = head.doc["task"]
        mirror = Mirror(self._redis, self._prefix, self._log, self._workspace, name, about)
        return TaskSession(self.work, self._entities, self._clock, mirror, name, about)


def _host(workspaces: Path) -> str:
    """The name of this disk: random, made once."""
    place = workspaces / "host"
    if not place.exists():
        write_once(place, secrets.token_hex(8))
    return place.read_text().strip()
