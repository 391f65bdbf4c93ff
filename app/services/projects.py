"""Projects: repositories that tasks are made from."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from app.coord.requests import Requests
from app.core.errors import Conflict, Invalid
from app.core.principal import Principal
from app.services.entities import Entities
from app.services.workspace_log import Happening
from app.services.writer import Clock
from app.store import keys
from app.store.contract import Absent, PreconditionFailed, Store
from app.store.puts import put_once, read_json

OPEN_SECONDS = 60.0
"""For a worker to open a repository; a first mirror of a large one takes its time."""
TODO_SECONDS = 20.0
LONGEST_NAME = 200
FIELDS = ("id", "name", "repo_path", "default_branch", "remote", "created_by", "created_at")
Document = dict[str, Any]
Documents = list[Document]


class Projects:
    """All projects of a deployment."""

    def __init__(self, store: Store, entities: Entities, requests: Requests, clock: Clock) -> None:
        self._store, self._entities, self._requests, self._clock = store, entities, requests, clock

    def create(self, principal: Principal, body: Document) -> Document:
        """Opens the repository (a worker does) and creates the project. Raises Invalid for what can't be opened, and for a taken name."""
        name = body["name"].strip()
        if not name or len(name) > LONGEST_NAME:
            raise Invalid(f"name: must have 1 to {LONGEST_NAME} characters", "name")
        tenant, repo_path = principal.tenant, body["repo_path"]
        project_id = self._reserve(tenant, name, repo_path)
        asked = {"tenant": tenant, "project": project_id, "name": name, "repo_path": repo_path}
        found = self._requests.ask("project.open", asked, OPEN_SECONDS)
        if read_json(self._store, keys.project_name(tenant, name))[0]["project"] != project_id:
            raise taken(name)  # by who asked for it with another repository meanwhile
        now = self._clock.text()
        doc = {
            "id": project_id,
            "tenant": tenant,
            "name": name,
            "created_by": principal.login,
            "created_at": now,
            **{field: found[field] for field in ("repo_path", "kind", "default_branch", "remote")},
        }
        payload = {"name": name, **{field: found[field] for field in ("repo_path", "default_branch", "remote")}}
        happened = Happening("project.created", now, {"project_id": project_id, "actor": principal.login, "payload": payload})
        try:
            return shown(self._entities.create(tenant, keys.project(tenant, project_id), doc, [happened]))
        except Conflict:
            raise taken(name) from None

    def _reserve(self, tenant: str, name: str, repo_path: str) -> str:
        """The id that a project of this name will have. Raises Invalid if there is one.

        Who asks again for what was never created gets the same id, and with it what a worker has of the repository by now: a first
        mirror may take longer than a caller waits.
        """
        key = keys.project_name(tenant, name)
        project_id = self._clock.id()
        asked = hashlib.sha256(repo_path.encode()).hexdigest()  # an address that is refused may hold a password
        mine = orjson.dumps({"project": project_id, "name": name, "asked": asked})
        try:
            put_once(self._store, key, mine, if_none_match=True)
            return project_id
        except PreconditionFailed:
            holder, etag = read_json(self._store, key)
        try:
            self._store.head(keys.project(tenant, holder["project"]))
            raise taken(name)
        except Absent:
            if holder.get("asked") == asked:
                return str(holder["project"])
        try:
            put_once(self._store, key, mine, if_match=etag)
            return project_id
        except PreconditionFailed:
            raise taken(name) from None

    def list(self, principal: Principal) -> Documents:
        """All projects of the tenant, oldest first."""
        found = [keys.project(principal.tenant, p) for p in self._entities.names(keys.projects_prefix(principal.tenant))]
        return [shown(doc) for doc in self._entities.many(principal.tenant, found)]

    def record(self, tenant: str, project_id: str) -> Document:
        """The project's own document. Raises Missing."""
        return self._entities.get(tenant, keys.project(tenant, project_id), "project")

    def get(self, principal: Principal, project_id: str) -> Document:
        """The project. Raises Missing."""
        return shown(self.record(principal.tenant, project_id))

    def todo(self, principal: Principal, project_id: str) -> Document:
        """The items of TODO.md on the default branch. Raises Missing, Unavailable."""
        project = self.record(principal.tenant, project_id)
        answer: Document = self._requests.ask("project.todo", {"tenant": principal.tenant, "project": project}, TODO_SECONDS)
        return answer


def taken(name: str) -> Invalid:
    """The refusal of a name that another project has."""
    return Invalid(f"name: there is a project {name[:80]!r} already", "name")


def shown(doc: Document) -> Document:
    """The contract's Project."""
    return {name: doc[name] for name in FIELDS}
