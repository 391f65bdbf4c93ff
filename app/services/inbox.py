"""The inbox: what wants a person's attention, one entity for each item.

Markers in the store say which items may be open and which belong to a task, so that neither is found by reading all. A marker is put
before its item and taken away after it is settled: it may lead to nothing, and never hides an open item.

Rules: who makes an item names its id, so that making it again after a crash makes no second one; an item is settled once, by CAS; what
was given for several items at once (`answers.py`) is finished here by whoever reads one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import structlog

from app.core import inbox as rules
from app.core.errors import Conflict, Missing
from app.core.principal import Principal
from app.services.entities import Entities
from app.services.tasks import happening
from app.services.workspace_log import Happening
from app.services.writer import Clock
from app.store import keys
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json

FIELDS = (
    "id",
    "project_id",
    "task_id",
    "agent_session_id",
    "thread_id",
    "kind",
    "priority",
    "blocking",
    "payload",
    "state",
    "created_at",
    "responses",
)
OPTIONAL = ("resolved_by", "resolved_at")
Document = dict[str, Any]
Documents = list[Document]
Settled = tuple[Document, Sequence[Happening]]

logger = structlog.get_logger(__name__)


class Inbox:
    """All inbox items of a deployment."""

    def __init__(self, store: Store, entities: Entities, clock: Clock) -> None:
        self._store, self._entities, self._clock = store, entities, clock

    def create(
        self, tenant: str, session: Document, kind: str, payload: Document, item_id: str, *, blocking: bool = False
    ) -> None:
        """Makes an item of a session (byre's record of it), once. Raises Unavailable."""
        now = self._clock.text()
        doc: Document = {
            "id": item_id,
            "project_id": session["project_id"],
            "task_id": session["task_id"],
            "agent_session_id": session["id"],
            "thread_id": session["thread_id"],
            "kind": kind,
            "priority": rules.priority(kind, blocking=blocking),
            "blocking": blocking,
            "payload": payload,
            "state": "open",
            "created_at": now,
            "responses": [],
        }
        about = {"item_id": item_id, **{name: doc[name] for name in ("kind", "priority", "blocking", "thread_id")}}
        actor = "agent" if kind == "question" else "byre"
        self._entities.mark(keys.task_inbox(tenant, doc["task_id"], item_id))
        self._entities.mark(keys.inbox_open(tenant, item_id))
        try:
            self._entities.create(
                tenant, keys.inbox(tenant, item_id), doc, [_happened(doc, "inbox.created", now, actor, about)]
            )
        except Conflict:
            return

    def get(self, principal: Principal, item_id: str) -> Document:
        """The contract's InboxItem. Raises Missing."""
        return shown(self.record(principal.tenant, item_id))

    def list(self, principal: Principal, query: Document) -> Documents:
        """Items that match, the open ones unless another state is asked for; highest priority first, then oldest."""
        tenant, state, task = principal.tenant, query.get("state", "open"), query.get("task_id")
        if task is not None:
            found = self.of_task(tenant, task) if keys.is_id(task) else []
        else:
            prefix = keys.inbox_open_prefix(tenant) if state == "open" else keys.inbox_prefix(tenant)
            found = self._many(tenant, (keys.last_part(key) for key in self._entities.listed(prefix)))
        project = query.get("project_id")
        found = [item for item in found if item["state"] == state and project in (None, item["project_id"])]
        return [shown(item) for item in sorted(found, key=rules.rank)]

    def of_task(self, tenant: str, task: str) -> Documents:
        """All items of a task, oldest first."""
        listed = self._entities.listed(keys.task_inbox_prefix(tenant, task))
        found = self._many(tenant, (keys.last_part(key) for key in listed))
        return sorted(found, key=lambda item: (item["created_at"], item["id"]))

    def open_of_task(self, tenant: str, task: str, wanted: Callable[[Document], bool] = lambda item: True) -> Documents:
        """The open ones among them that are `wanted`."""
        return [item for item in self.of_task(tenant, task) if item["state"] == "open" and wanted(item)]

    def record(self, tenant: str, item_id: str) -> Document:
        """The item's own document. Raises Missing."""
        try:
            key = keys.inbox(tenant, item_id)
        except ValueError:
            raise Missing("no such inbox item") from None
        doc = self._entities.get(tenant, key, "inbox item")
        return self._finished(tenant, doc) if "claim" in doc else doc

    def change(self, tenant: str, item_id: str, how: Callable[[Document], Settled | None]) -> Document:
        """Changes an item by CAS; takes its marker away if it is settled by that. Raises Missing, and what `how` raises."""
        doc = self._entities.change(tenant, keys.inbox(tenant, item_id), how)
        if doc["state"] != "open":
            self._unmark(tenant, item_id)
        return doc

    def supersede(self, tenant: str, items: Iterable[Document], reason: str, *, actor: str = "byre") -> None:
        """Settles items that have become pointless, as far as they are still open. Raises Unavailable."""
        now = self._clock.text()

        def settle(doc: Document) -> Settled | None:
            if doc["state"] != "open":
                return None
            given = self.break_claim(tenant, doc) if "claim" in doc else None
            if given:
                return answered(doc, given[doc["id"]])
            happened = _happened(doc, "inbox.superseded", now, actor, {"item_id": doc["id"], "reason": reason})
            new = {**_free(doc), "state": rules.step("open", "supersede"), "resolved_by": actor, "resolved_at": now}
            return new, [happened]

        for item in items:
            self.change(tenant, item["id"], settle)

    def break_claim(self, tenant: str, doc: Document) -> Document | None:
        """Makes sure that the answers which have claimed an item never count, unless they do already: then the responses, by item."""
        key = keys.submission(tenant, doc["claim"]["submission"])
        try:
            create_json(self._store, key, {"given": False})
            return None
        except PreconditionFailed:
            submission, _ = read_json(self._store, key)
        return dict(submission["responses"]) if submission["given"] else None

    def _many(self, tenant: str, ids: Iterable[str]) -> Documents:
        wanted = list(ids)
        found = self._entities.many(tenant, [keys.inbox(tenant, item) for item in wanted])
        return [self._finished(tenant, doc) if "claim" in doc else doc for doc in found]

    def _finished(self, tenant: str, doc: Document) -> Document:
        """An item that answers to several were about to settle: settled, if they were given."""
        try:
            submission, _ = read_json(self._store, keys.submission(tenant, doc["claim"]["submission"]))
        except (Absent, StoreError):
            return doc
        if not submission["given"] or doc["state"] != "open":
            return doc
        response = submission["responses"][doc["id"]]
        return self.change(tenant, doc["id"], lambda now: answered(now, response) if now["state"] == "open" else None)

    def _unmark(self, tenant: str, item_id: str) -> None:
        try:
            self._store.delete(keys.inbox_open(tenant, item_id))
        except StoreError:
            # the item itself says that it isn't open
            logger.info("marker of a settled inbox item not removed", item=item_id)


def shown(doc: Document) -> Document:
    """The contract's InboxItem."""
    return {**{name: doc[name] for name in FIELDS}, **{name: doc[name] for name in OPTIONAL if name in doc}}


def answered(doc: Document, response: Document) -> Settled:
    """The item settled by `response`, and what happened. Raises Conflict if it is settled already."""
    state = rules.step(doc["state"], response["type"])
    about: Document = {"item_id": doc["id"], "response_id": response["id"], "user": response["user"]}
    if state == "answered":
        about |= {"type": response["type"], **{name: response[name] for name in ("options", "text") if response.get(name)}}
    resolved = {"resolved_by": response["user"], "resolved_at": response["created_at"]}
    new = {**_free(doc), "state": state, **resolved, "responses": [*doc["responses"], response]}
    return new, [_happened(doc, f"inbox.{state}", response["created_at"], response["user"], about)]


def _free(doc: Document) -> Document:
    return {name: value for name, value in doc.items() if name != "claim"}


def _happened(item: Document, kind: str, time: str, actor: str, payload: Document) -> Happening:
    about = {"id": item["task_id"], "project_id": item["project_id"]}
    return happening(about, kind, time, actor, payload, item["agent_session_id"])
