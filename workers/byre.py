"""byre's half of a worker, put together: requests that need a repository, and sessions in worktrees."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import redis

from app.coord.coord import Coord
from app.coord.owed import Owed
from app.coord.requests import Requests
from app.core.errors import Unavailable
from app.git.github_app import Tokens
from app.git.run import Git, write_once
from app.git.view import Views
from app.log.heads import LogHead
from app.log.log import Log
from app.outgoing.client import Outgoing
from app.outgoing.errors import OutgoingError
from app.services.entities import Entities
from app.services.project_settings import SettingsOfProjects
from app.services.users import Users
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.settings import Settings
from app.store.keys import LogName
from workers.disk import Disk
from workers.mirror import Mirror
from workers.people import PeopleHalf
from workers.places import Places
from workers.repositories import Repositories, Roots
from workers.task_session import TaskSession
from workers.tasks import TaskWork

SAVERS = 4
"""Bundles that are made at once."""


class ByreHalf:
    """Parts of one worker. `host` is the same for all workers that share BYRE_WORKSPACES."""

    def __init__(
        self,
        settings: Settings,
        client: redis.Redis,
        requests: Requests,
        log: Log,
        projects: SettingsOfProjects,
        outgoing: Outgoing,
        coord: Coord,
        failed: Callable[[], None],
    ) -> None:
        self._redis, self._prefix, self._log = client, settings.redis_prefix, log
        self._workspace = WorkspaceLog(log)
        self._entities = Entities(log.store, self._workspace)
        self._clock = Clock()
        self.host = _host(settings.workspaces)
        self.requests = requests
        self._pool = ThreadPoolExecutor(SAVERS, thread_name_prefix="save")
        certificates = [Path(entry) for entry in settings.outgoing_allow if entry.startswith("/")]
        views = Views(Git(settings.workspaces / "git", certificates=certificates), settings.repo_roots)
        roots = Roots(settings.repo_roots, settings.workspaces)
        apps = Tokens(_post(outgoing))
        repositories = Repositories(views, roots, log.store, projects, apps, self.host, self._clock)
        self.places = Places(repositories, requests, self._clock, self._pool)
        self.work = TaskWork(self.places, self._entities, self._clock)
        self.users = Users(self._entities)
        self.disk = Disk(self.places, self._entities, settings.disk_budget, failed)
        self.places.released = self.disk.look
        self.people = PeopleHalf(
            log,
            coord,
            Owed(client, settings.redis_prefix),
            requests,
            self.work,
            self._mirror,
            vendor=settings.vendor,
            grace_ms=int(settings.lease_seconds * 1000),
            folder=settings.workspaces / "git" / "follow",
            failed=failed,
        )

    def close(self) -> None:
        """Waits for what is being done and saved."""
        self.disk.close()
        self.people.close()
        self._pool.shutdown(wait=True)

    def session(self, name: LogName, head: LogHead) -> TaskSession:
        """What the runner of a session in a task's worktree needs. Raises Missing, Conflict, Unavailable."""
        mirror = self._mirror(name, head.doc["task"])
        return TaskSession(self.places, self._entities, self.users, self._clock, mirror, name, head, self.people)

    def _mirror(self, name: LogName, about: dict[str, Any]) -> Mirror:
        return Mirror(self._redis, self._prefix, self._log, self._workspace, name, about)


def _post(outgoing: Outgoing) -> Callable[[str, dict[str, str]], tuple[int, bytes]]:
    def post(url: str, headers: dict[str, str]) -> tuple[int, bytes]:
        try:
            answer = outgoing.send("POST", url, headers)
        except OutgoingError as error:
            raise Unavailable(f"GitHub can't be asked for a token: {error}") from error
        return answer.status, answer.body

    return post


def _host(workspaces: Path) -> str:
    """The name of this disk: random, made once."""
    place = workspaces / "host"
    if not place.exists():
        write_once(place, secrets.token_hex(8))
    return place.read_text().strip()
