"""byre over HTTP: handlers of `/api`, one method per operation, named by its operationId. No rule lives here.

An operation that isn't built yet is routed, authenticated and authorised like any other, and then answers 501.
"""

from __future__ import annotations

from typing import Any

from app.core.errors import ByreError
from app.http import blobs, sse
from app.http.deps import ByreServices, Document
from app.http.operations import BYRE
from app.http.requests import Call, Handler
from app.http.sse import Followers


class NotBuilt(ByreError):
    """The operation is part of the contract and not of this version."""

    code = "unsupported"


class Byre:
    """Handlers of `/api`, by operationId."""

    def __init__(self, services: ByreServices | None, followers: Followers) -> None:
        self._s, self._followers = services, followers

    def __getattr__(self, name: str) -> Handler:
        operation = BYRE.get(name)
        if operation is None or operation.resource != "byre":
            raise AttributeError(name)

        def handler(call: Call) -> None:
            raise NotBuilt(f"{call.operation.id} is not part of this version yet")

        handler.__name__ = name
        return handler

    @property
    def _services(self) -> ByreServices:
        if self._s is None:
            raise NotBuilt("this deployment serves Brain only")
        return self._s

    def getMe(self, call: Call) -> Document:
        return self._services.users.me(call.caller)

    def updateMe(self, call: Call) -> Document:
        return self._services.users.update(call.caller, call.json())

    def updateNotificationPrefs(self, call: Call) -> Document:
        return self._services.users.update_prefs(call.caller, call.json())

    def addPushSubscription(self, call: Call) -> None:
        self._services.devices.add(call.caller, call.json())

    def removePushSubscription(self, call: Call) -> None:
        self._services.devices.remove(call.caller, call.query()["endpoint"])

    def getPushKey(self, call: Call) -> Document:
        return {"public_key": self._services.vapid.public_key()}

    def listProjects(self, call: Call) -> list[Document]:
        return self._services.projects.list(call.caller)

    def createProject(self, call: Call) -> Document:
        return self._services.projects.create(call.caller, call.json())

    def getProject(self, call: Call) -> Document:
        return self._services.projects.get(call.caller, call.params["projectId"])

    def getTodo(self, call: Call) -> Document:
        return self._services.projects.todo(call.caller, call.params["projectId"])

    def listTasks(self, call: Call) -> list[Document]:
        return self._services.tasks.list(call.caller, call.params["projectId"])

    def createTask(self, call: Call) -> Document:
        return self._services.tasks.create(call.caller, call.params["projectId"], call.json()["title"])

    def startTodoItem(self, call: Call) -> Document:
        return self._services.starts.todo_item(call.caller, call.params["projectId"], call.json())

    def getTask(self, call: Call) -> Document:
        return self._services.tasks.get(call.caller, call.params["taskId"])

    def discardTask(self, call: Call) -> Document:
        return self._services.merging.discard(call.caller, call.params["taskId"])

    def getCoAuthors(self, call: Call) -> list[Document]:
        return self._services.merging.co_authors(call.caller, call.params["taskId"])

    def mergeIn(self, call: Call) -> Document:
        return self._services.merging.merge_in(call.caller, call.params["taskId"])

    def mergeTask(self, call: Call) -> Document:
        return self._services.merging.merge(call.caller, call.params["taskId"])

    def getUnmerged(self, call: Call) -> Document:
        return self._services.tasks.unmerged(call.caller, call.params["taskId"])

    def getTaskChanges(self, call: Call) -> Document:
        return self._services.tasks.changes(call.caller, call.params["taskId"], call.query())

    def getTaskDiff(self, call: Call) -> Document:
        return self._services.tasks.diff(call.caller, call.params["taskId"], call.query())

    def listSnapshots(self, call: Call) -> list[Document]:
        return self._services.tasks.snapshots(call.caller, call.params["taskId"])

    def listTaskEvents(self, call: Call) -> list[Document]:
        query = call.query()
        return self._services.tasks.events(call.caller, call.params["taskId"], query.get("after", 0), query.get("limit", 500))

    def listSessions(self, call: Call) -> list[Document]:
        return self._services.agents.list(call.caller, call.params["taskId"])

    def createSession(self, call: Call) -> Document:
        return self._services.agents.create(call.caller, call.params["taskId"], call.json())

    def getSession(self, call: Call) -> Document:
        return self._services.agents.get(call.caller, call.params["sessionId"])

    def sendMessage(self, call: Call) -> Document:
        return self._services.agents.message(call.caller, call.params["sessionId"], call.json())

    def compactSession(self, call: Call) -> Document:
        return self._services.agents.compact(call.caller, call.params["sessionId"])

    def interruptSession(self, call: Call) -> Document:
        return self._services.agents.interrupt(call.caller, call.params["sessionId"])

    def listInbox(self, call: Call) -> list[Document]:
        return self._services.inbox.list(call.caller, call.query())

    def getInboxItem(self, call: Call) -> Document:
        return self._services.inbox.get(call.caller, call.params["itemId"])

    def respondInbox(self, call: Call) -> list[Document]:
        return self._services.answers.respond(call.caller, call.json())

    def uploadBlob(self, call: Call) -> Document:
        return blobs.upload(call, self._services.blobs)

    def getBlob(self, call: Call) -> None:
        blobs.download(call, self._services.blobs)

    def getStatus(self, call: Call) -> Document:
        return self._services.status.get(call.caller)

    def streamEvents(self, call: Call) -> None:
        """Workspace events as server-sent events: replayed after a `seq`, then live. `Last-Event-ID` wins over `after`."""
        query = call.query()
        last = call.header("Last-Event-ID")
        after: Any = last if last is not None else query.get("after")
        if call.req.method == "HEAD":
            sse.head(call.resp)
            return
        self._followers.attach(
            call.resp,
            call.req.env,
            call.credential,
            call.caller,
            lambda: self._services.events.stream(call.caller, after, query.get("task_id")),
            first=sse.RETRY,
        )
