"""Every operation of both contracts: its place, who may call it, and the handler that serves it.

Rules: this table is the only place where a route, its scope or its success status is named. `resource` is an entry of the
mapping that `app.py` builds; the handler is that object's method with the operation's id as its name. A route without a row
here doesn't exist, and a row without a handler stops the process at its start.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.principal import Scope
from app.services.blobs import LARGEST as LARGEST_IMAGE

MANAGEMENT: frozenset[Scope] = frozenset({"management"})
MEMBER: frozenset[Scope] = frozenset({"management", "user"})
READER: frozenset[Scope] = frozenset({"management", "user", "inspection"})
EXECUTOR: frozenset[Scope] = frozenset({"executor"})


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. `status` is what success answers; `body`: it takes a JSON body; `login`: the caller must be a person."""

    id: str
    method: str
    path: str
    resource: str
    scopes: frozenset[Scope]
    status: int = 200
    body: bool = False
    login: bool = False
    largest: int | None = None
    """Bytes that its body may have, where that isn't the deployment's limit."""


def _brain() -> list[Operation]:
    session = "/sessions/{id}"
    executor = "/executors/{id}"
    return [
        Operation("create", "POST", "/sessions", "sessions", MANAGEMENT, 201, body=True),
        Operation("list", "GET", "/sessions", "sessions", MEMBER),
        Operation("get", "GET", session, "sessions", READER),
        Operation("close", "POST", f"{session}/close", "sessions", MANAGEMENT, 202),
        Operation("events", "GET", f"{session}/events", "sessions", READER),
        Operation("send", "POST", f"{session}/events", "sessions", MEMBER, 202, body=True),
        Operation("withdrawInput", "DELETE", f"{session}/inputs/{{event_id}}", "sessions", MEMBER),
        Operation("flush", "POST", f"{session}/flush", "sessions", MANAGEMENT),
        Operation("sync", "GET", f"{session}/sync", "sessions", MEMBER),
        Operation("restore", "POST", f"{session}/restore", "sessions", MANAGEMENT, body=True),
        Operation("resume", "POST", f"{session}/resume", "sessions", MANAGEMENT),
        Operation("catalog", "GET", "/catalog", "catalog", MEMBER),
        Operation("registerExecutor", "POST", "/executors", "executors", MANAGEMENT, 201, body=True),
        Operation("executorCommands", "GET", f"{executor}/commands", "executors", EXECUTOR),
        Operation("executorReply", "POST", f"{executor}/responses", "executors", EXECUTOR, body=True),
        Operation("executorRPC", "GET", f"{executor}/rpc", "executors", EXECUTOR, 101),
        Operation("unregisterExecutor", "POST", f"{executor}/close", "executors", EXECUTOR),
    ]


def _byre() -> list[Operation]:
    def row(id: str, method: str, path: str, status: int = 200, *, body: bool = False, largest: int | None = None) -> Operation:
        return Operation(id, method, "/api" + path, "byre", MEMBER, status, body=body, login=True, largest=largest)

    return [
        row("getMe", "GET", "/me"),
        row("updateMe", "PUT", "/me", body=True),
        row("updateNotificationPrefs", "PUT", "/me/notifications", body=True),
        row("addPushSubscription", "POST", "/me/push-subscriptions", 204, body=True),
        row("removePushSubscription", "DELETE", "/me/push-subscriptions", 204),
        row("getPushKey", "GET", "/push/key"),
        row("listProjects", "GET", "/projects"),
        row("createProject", "POST", "/projects", 201, body=True),
        row("getProject", "GET", "/projects/{projectId}"),
        row("listTasks", "GET", "/projects/{projectId}/tasks"),
        row("createTask", "POST", "/projects/{projectId}/tasks", 201, body=True),
        row("getTodo", "GET", "/projects/{projectId}/todo"),
        row("startTodoItem", "POST", "/projects/{projectId}/todo/tasks", 201, body=True),
        row("getTask", "GET", "/tasks/{taskId}"),
        row("getUnmerged", "GET", "/tasks/{taskId}/unmerged"),
        row("getCoAuthors", "GET", "/tasks/{taskId}/co-authors"),
        row("mergeTask", "POST", "/tasks/{taskId}/merge", 202),
        row("mergeIn", "POST", "/tasks/{taskId}/merge-in", 202),
        row("discardTask", "POST", "/tasks/{taskId}/discard"),
        row("listTaskEvents", "GET", "/tasks/{taskId}/events"),
        row("getTaskChanges", "GET", "/tasks/{taskId}/changes"),
        row("getTaskDiff", "GET", "/tasks/{taskId}/diff"),
        row("listSnapshots", "GET", "/tasks/{taskId}/snapshots"),
        row("listSessions", "GET", "/tasks/{taskId}/sessions"),
        row("createSession", "POST", "/tasks/{taskId}/sessions", 201, body=True),
        row("getSession", "GET", "/sessions/{sessionId}"),
        row("sendMessage", "POST", "/sessions/{sessionId}/messages", 202, body=True),
        row("compactSession", "POST", "/sessions/{sessionId}/compact", 202),
        row("interruptSession", "POST", "/sessions/{sessionId}/interrupt", 202),
        row("uploadBlob", "POST", "/blobs", 201, largest=LARGEST_IMAGE),
        row("getBlob", "GET", "/blobs/{blobId}"),
        row("listInbox", "GET", "/inbox"),
        row("getInboxItem", "GET", "/inbox/{itemId}"),
        row("respondInbox", "POST", "/inbox/responses", body=True),
        row("streamEvents", "GET", "/events"),
        row("getStatus", "GET", "/admin/status"),
    ]


BRAIN: dict[str, Operation] = {operation.id: operation for operation in _brain()}
BYRE: dict[str, Operation] = {operation.id: operation for operation in _byre()}
OPERATIONS: dict[str, Operation] = {**BRAIN, **BYRE}
