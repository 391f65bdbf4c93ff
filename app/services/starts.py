"""Starting work from a TODO item: a task and its agent in one step."""

from __future__ import annotations

from typing import Any

from app.core.errors import Missing
from app.core.principal import Principal
from app.services.agents import Agents
from app.services.projects import Projects
from app.services.tasks import Tasks

Document = dict[str, Any]


class Starts:
    """What involves a task and its first session together."""

    def __init__(self, projects: Projects, tasks: Tasks, agents: Agents) -> None:
        self._projects, self._tasks, self._agents = projects, tasks, agents

    def todo_item(self, principal: Principal, project_id: str, body: Document) -> Document:
        """A task for an item, with the item as its agent's first message. Raises Missing, Conflict while an active task has the item."""
        items = self._projects.todo(principal, project_id)["items"]
        item = next((i for i in items if i["title"] == body["title"]), None)
        if item is None:
            raise Missing("the default branch's TODO.md has no such item")
        task = self._tasks.create(principal, project_id, item["title"], todo_item=item["title"])
        prompt = "\n".join(part for part in (item["title"], item["body"]) if part)
        session = {"prompt": prompt, **({"model": body["model"]} if body.get("model") else {})}
        self._agents.create(principal, task["id"], session)
        return task
