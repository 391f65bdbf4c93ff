"""Answers the calls of byre's own tools: questions become inbox items, titles go to the task, progress is an event.

Rules: what a call made is named by the call, so there is one item for it however often it is looked at; an agent that asked wrongly is
told what was wrong and may ask again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog

from app.core import inbox as rules
from app.core.errors import ByreError, Conflict, Invalid
from app.core.tools import text_result
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.tasks import LONGEST_TITLE, happening
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.store import keys
from workers.tools import Call

MOST_OPEN = 20
"""Open questions of one task: an agent that asks on and on is told to wait."""
LONGEST_PROGRESS = 4000
BLOCKED = (
    "Your question is with the people who watch over this task, and you said that you can't go on without the answer. End your "
    "turn now, without doing anything else: the answer will be your next message."
)
ASKED = "Your question is with the people who watch over this task. Go on working; the answer comes as a message later."
Document = dict[str, Any]

logger = structlog.get_logger(__name__)


class ByreTools:
    """What `Answers` asks of a kind of binding, for byre's own tools."""

    def __init__(self, entities: Entities, inbox: Inbox, workspace: WorkspaceLog, clock: Clock) -> None:
        self._entities, self._inbox, self._workspace, self._clock = entities, inbox, workspace, clock
        self._tools: dict[str, Callable[[Call, Document, Document], str]] = {
            "ask_human": self._ask,
            "set_merge_title": self._title,
            "report_progress": self._progress,
        }

    def call(self, call: Call) -> Document:
        """Runs one call to its result."""
        if call.task is None:
            return text_result("this session has no task", error=True)
        tenant, task_id = call.scope["tenant_id"], call.task["task_id"]
        try:
            task = self._entities.get(tenant, keys.task(tenant, task_id), "task")
            if task["status"] != "active":
                raise Conflict(f"the task is {task['status']}")
            record = self._entities.get(tenant, keys.task_session(tenant, task_id, call.scope["session_id"]), "session")
            return text_result(self._tools[call.tool](call, task, record))
        except ByreError as error:
            return text_result(error.message, error=True)

    def _ask(self, call: Call, task: Document, record: Document) -> str:
        tenant, blocking = call.scope["tenant_id"], bool(call.arguments.get("blocking", False))
        payload = rules.question(call.arguments)
        if len(self._inbox.open_of_task(tenant, task["id"], lambda item: item["kind"] == "question")) >= MOST_OPEN:
            raise Conflict(f"{MOST_OPEN} questions of this task are open: wait for answers")
        self._inbox.create(tenant, record, "question", payload, call.id, blocking=blocking)
        return BLOCKED if blocking else ASKED

    def _title(self, call: Call, task: Document, record: Document) -> str:
        title = call.arguments["title"].strip()
        if not title or len(title) > LONGEST_TITLE or "\n" in title or "\r" in title or "\0" in title:
            raise Invalid(f"title: must be one line of 1 to {LONGEST_TITLE} characters", "title")
        tenant = call.scope["tenant_id"]

        def named(doc: Document) -> tuple[Document, tuple[()]] | None:
            return None if doc["merge_title"] == title else ({**doc, "merge_title": title}, ())

        self._entities.change(tenant, keys.task(tenant, task["id"]), named)
        return f"The task will be merged as: {title}"

    def _progress(self, call: Call, task: Document, record: Document) -> str:
        text = call.arguments["text"].strip()
        if not text or len(text) > LONGEST_PROGRESS:
            raise Invalid(f"text: must have 1 to {LONGEST_PROGRESS} characters", "text")
        payload = {"turn": call.turn, "text": text}
        happened = happening(task, "agent.progress", self._clock.text(), "agent", payload, record["id"])
        event = {"id": call.id, "kind": happened.kind, "time": happened.time, "data": happened.data}
        self._workspace.publish(call.scope["tenant_id"], [event])
        return "Noted."
