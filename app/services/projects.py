"""Projects: repositories that tasks are made from."""

from __future__ import annotations

from typing import Any

import orjson

from app.coord.requests import Requests
from app.core.errors import Invalid
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
        project_id = self._clock.id()
        asked = {"tenant": principal.tenant, "project": project_id, "name": name, "repo_path": body["repo_path"]}
        found = self._requests.ask("project.open", asked, OPEN_SECONDS)
        self._reserve(principal.tenant, name, project_id)
        now = self._clock.text()
        doc = {
            "id": project_id,
            "tenant": principal.tenant,
            "name": name,
            "created_by": principal.login,
            "created_at": now,
            **{field: found[field] for field in ("repo_path", "kind", "default_branch", "remote")},
        }
        payload = {"name": name, **{field: found[field] for field in ("repo_path", "default_branch", "remote")}}
        happened = Happening("project.created", now, {"project_id": project_id, "actor": principal.login, "payload": payload})
        return shown(self._entities.create(principal.tenant, keys.project(principal.tenant, project_id), doc, [happened]))

    def _reserve(self, tenant: str, name: str, project_id: str) -> None:
        key = keys.project_name(tenant, name)
        mine = orjson.dumps({"project": project_id, "name": name})
        try:
            put_once(self._store, key, mine, if_none_match=True)
            return
        except PreconditionFailed:
            taken = Invalid(f"name: there is a project {name[:80]!r} already", "name")
        try:
            holder, etag = read_json(self._store, key)
            self._store.head(keys.project(tenant, holder["project"]))
            raise taken
        except Absent:
            # whoever reserved it has never created the project
            try:
                put_once(self._store, key, mine, if_match=etag)
            except PreconditionFailed:
                raise taken from None

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


def shown(doc: Document) -> Document:
    """The contract's Project."""
    return {name: doc[name] for name in FIELDS}
