"""Bringing answers of people to their agent, as one message, once it is idle and none of its blocking questions is open.

Rules: what is to be said is noted in the session's record before it is said, with the key under which it is said, so a crash in between
neither loses an answer nor brings it twice; answers to a completed session go to its successor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from app.core import inbox as rules
from app.core.errors import Conflict
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.turns import Said, Turns
from app.services.users import Users
from app.services.writer import Clock
from app.store import keys

GIVEN = ("option", "other")
MOST = 50
"""Answers in one message."""
Document = dict[str, Any]
Documents = list[Document]


class Deliveries:
    """`head` gives the commit that a task's worktree is on."""

    def __init__(
        self, entities: Entities, inbox: Inbox, turns: Turns, users: Users, clock: Clock, head: Callable[[str, Document], str]
    ) -> None:
        self._entities, self._inbox, self._turns = entities, inbox, turns
        self._users, self._clock, self._head = users, clock, head

    def deliver(self, tenant: str, task: Document, records: Sequence[Document]) -> bool:
        """Delivers what is due to the one of the task's sessions that comes first; whether anything was. Raises Unavailable."""
        going_on = [record for record in records if not record["completed"]]
        for record in going_on:
            if record.get("delivery"):
                self._finish(tenant, task, record)
                return True
        items = self._inbox.of_task(tenant, task["id"])
        for record in going_on:
            due = _due([item for item in items if item["thread_id"] == record["thread_id"]])
            if due:
                return self._begin(tenant, task, record, due[:MOST])
        return False

    def _begin(self, tenant: str, task: Document, record: Document, due: Sequence[tuple[Document, Document]]) -> bool:
        with self._turns.starting(tenant, task["id"]):
            task = self._entities.get(tenant, keys.task(tenant, task["id"]), "task")
            if task["status"] != "active" or self._turns.busy(tenant, task):
                return False
            record = self._note(tenant, task, record, due)
            self._finish(tenant, task, record)
        return True

    def _note(self, tenant: str, task: Document, record: Document, due: Sequence[tuple[Document, Document]]) -> Document:
        names = {login: self._users.get(tenant, login)["display_name"] for login in {r["user"] for _, r in due}}
        delivery = {
            "id": self._clock.id(),
            "items": [item["id"] for item, _ in due],
            "text": "\n\n".join(rules.told(item, response, names[response["user"]]) for item, response in due),
            "head": self._head(tenant, task),
            "answers": [
                {"item_id": item["id"], "login": response["user"], "display_name": names[response["user"]]}
                for item, response in due
            ],
        }

        def noted(doc: Document) -> tuple[Document, tuple[()]]:
            if doc["completed"] or doc.get("delivery"):
                raise Conflict("the session has gone on meanwhile")
            return {**doc, "delivery": delivery}, ()

        return self._entities.change(tenant, keys.task_session(tenant, task["id"], record["id"]), noted)

    def _finish(self, tenant: str, task: Document, record: Document) -> None:
        delivery = record["delivery"]
        said = Said(
            delivery["text"],
            delivery["head"],
            "byre",
            answers=delivery["answers"],
            key=f"delivery:{delivery['id']}",
            alone=False,
        )
        self._turns.say(tenant, task, record["id"], said)
        now = self._clock.text()

        def delivered(doc: Document) -> tuple[Document, tuple[()]] | None:
            told = [
                {**r, "delivered_at": now} if r["type"] in GIVEN and "delivered_at" not in r else r for r in doc["responses"]
            ]
            return ({**doc, "responses": told}, ()) if told != doc["responses"] else None

        for item in delivery["items"]:
            self._inbox.change(tenant, item, delivered)

        def cleared(doc: Document) -> tuple[Document, tuple[()]] | None:
            return ({n: v for n, v in doc.items() if n != "delivery"}, ()) if "delivery" in doc else None

        self._entities.change(tenant, keys.task_session(tenant, task["id"], record["id"]), cleared)


def _due(items: Documents) -> list[tuple[Document, Document]]:
    """Answers that weren't delivered yet, in the order in which they were given; none while a blocking question is open."""
    if any(item["blocking"] and item["state"] == "open" for item in items):
        return []
    found = [(item, r) for item in items for r in item["responses"] if r["type"] in GIVEN and "delivered_at" not in r]
    return sorted(found, key=lambda pair: str(pair[1]["created_at"]))
