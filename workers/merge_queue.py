"""The merges of a project, one at a time: an entity that lists the tasks whose merges wait, in the order in which they were asked for.

Rules: a place in the list belongs to one merge; who is before us and isn't merging any more (a worker died before it left) is passed over.
"""

from __future__ import annotations

from typing import Any

from app.core.errors import Missing
from app.services.entities import Entities
from app.store import keys

Document = dict[str, Any]


class MergeQueue:
    """The lists of all projects."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    def first(self, tenant: str, task: Document) -> bool:
        """Whether the task's merge may go on; it gets its place at the end if it has none. Raises Unavailable."""
        place = [task["id"], task["merge"]["id"]]

        def joined(doc: Document) -> tuple[Document, tuple[()]] | None:
            return None if place in doc["places"] else ({**doc, "places": [*doc["places"], place]}, ())

        key = keys.merge_queue(tenant, task["project_id"])
        places = self._entities.ensure(tenant, key, {"places": []}, joined)["places"]
        before = places[: places.index(place)]
        gone = [other for other in before if not self._merges(tenant, *other)]
        if gone:
            self._entities.change(
                tenant, key, lambda doc: ({**doc, "places": [each for each in doc["places"] if each not in gone]}, ())
            )
        return len(gone) == len(before)

    def _merges(self, tenant: str, task: str, merge: str) -> bool:
        try:
            doc = self._entities.get(tenant, keys.task(tenant, task), "task")
        except Missing:
            return False
        return bool(doc["status"] == "active" and doc.get("merge", {}).get("id") == merge)

    def leave(self, tenant: str, task: Document) -> list[str]:
        """Gives the place up; gives the tasks that wait now, the first one first. Raises Unavailable."""
        mine = task["merge"]["id"]

        def left(doc: Document) -> tuple[Document, tuple[()]] | None:
            others = [place for place in doc["places"] if place[1] != mine]
            return ({**doc, "places": others}, ()) if len(others) != len(doc["places"]) else None

        key = keys.merge_queue(tenant, task["project_id"])
        places = self._entities.ensure(tenant, key, {"places": [["", mine]]}, left)["places"]
        return [place[0] for place in places[:1]]
