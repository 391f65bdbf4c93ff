"""H1: every operation of both contracts with every kind of caller, against a running deployment: exactly the status that the design says.

A caller that may not is refused on the real object; one of another tenant doesn't find it; one that may is shown to get through on an
object that isn't there, or by what an operation without an object answers.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from app.http.operations import BYRE, OPERATIONS, Operation
from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.deployment import TENANT, deployment
from tests.support.people import QUICK, People
from tests.support.push_service import Browser

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 30
NOWHERE = "0198f2c4a7b07c1d9a3e5b6f8d2c4e10"
ANSWER = {"responses": [{"item_id": NOWHERE, "type": "dismiss"}]}
PREFS = dict.fromkeys(("blocking_questions", "questions", "reports", "errors", "rate_limits"), False)
SUBSCRIPTION = Browser("https://push.example/one").subscription
REGISTRATION = {"binding": "calc", "tools": [{"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}]}
BODIES: dict[str, Any] = {
    "create": {"harness": "script", "config": {"model": "m", "tools": []}},
    "send": {"type": "user.message", "text": "hello"},
    "restore": {"checkpoint": NOWHERE},
    "registerExecutor": REGISTRATION,
    "executorReply": {"connection": NOWHERE, "call_id": NOWHERE, "result": {"content": []}},
    "updateMe": {"git_name": "", "git_email": ""},
    "updateNotificationPrefs": PREFS,
    "addPushSubscription": SUBSCRIPTION,
    "createProject": {"name": "x", "repo_path": "/nowhere"},
    "createTask": {"title": "x"},
    "startTodoItem": {"title": "x"},
    "createSession": {"prompt": "x"},
    "sendMessage": {"text": "x"},
    "respondInbox": ANSWER,
}
QUERIES = {
    "removePushSubscription": "?endpoint=https://push.example/other",
    "getTaskDiff": f"?base={'0' * 40}&tree={'0' * 40}&path=a",
}
PLAIN = {
    "create": 201,
    "registerExecutor": 201,
    "addPushSubscription": 204,
    "removePushSubscription": 204,
    "createProject": 400,
    "uploadBlob": 201,
    "respondInbox": 404,
}
"""What an operation without an object answers those who may call it, where that isn't 200."""
MANAGERS = {"create", "close", "flush", "restore", "resume", "registerExecutor"}
INSPECTED = {"get", "events"}
EXECUTORS = {"executorCommands", "executorReply", "executorRPC", "unregisterExecutor"}
every = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


class World:
    """A deployment with an object of each kind, and a credential of each kind of caller."""

    def __init__(self, people: People) -> None:
        self.people = people
        self.host = urlsplit(people.api.info["url"]).netloc
        project = people.project()
        task = project.task()
        blob = self.ask("POST", "/api/blobs", {"Authorization": f"Bearer {people.boss}"}, PNG)
        self.ids = {"projectId": project.id, "taskId": task, "sessionId": people.work(task, "/say hi"), "blobId": blob[1]["id"]}
        self.brain = people.api.session()
        executor = people.api.call("POST", "/executors", REGISTRATION).json
        self.executor = executor["id"]
        self.ids["itemId"] = people.inbox(task)[0]["id"]
        opened = open_store(people.it.store)
        self.tokens = Tokens(opened, people.it.env["BYRE_SECRET_KEY"])
        self.bearers = {
            "user": people.boss,
            "manager": self.tokens.create(TENANT, "management", login="ann")[1],
            "machine": self.tokens.create(TENANT, "management")[1],
            "foreign": self.tokens.create("rival", "management", login="eve")[1],
            "inspection": self.tokens.inspection(TENANT, self.brain),
            "inspection of another": self.tokens.inspection(TENANT, NOWHERE),
            "executor": executor["token"],
            "executor of another": self.tokens.executor_credential(TENANT, NOWHERE),
            "garbage": "byre_" + "x" * 43,
            "expired": self.tokens.create(TENANT, "management", login="ann", expires_at=int(time.time()) + 1)[1],
            "expired inspection": self.tokens.inspection(TENANT, self.brain, seconds=-1),
            "expired executor": self.tokens.executor_credential(TENANT, self.executor, seconds=-1),
            "revoked": self._revoked(),
        }
        self.cookie = self.tokens.login(self.bearers["user"]).cookie
        self.dead_cookie = self._dead()
        opened.close()
        time.sleep(max(0.0, 1.2 - time.time() % 1))  # the expiry of a token is a whole second

    def _revoked(self) -> str:
        token_id, token = self.tokens.create(TENANT, "management", login="ann")
        self.tokens.revoke(token_id)
        return token

    def _dead(self) -> str:
        token_id, token = self.tokens.create(TENANT, "user", login="ann")
        cookie = self.tokens.login(token).cookie
        self.tokens.revoke(token_id)
        return cookie

    def path(self, operation: Operation, *, real: bool = True) -> str:
        path = operation.path
        brain = self.executor if operation.id in EXECUTORS else self.brain
        for name, value in {**self.ids, "id": brain, "event_id": NOWHERE}.items():
            path = path.replace("{" + name + "}", value if real else NOWHERE)
        return path + QUERIES.get(operation.id, "")

    def call(self, operation: Operation, headers: dict[str, str], *, real: bool = True) -> tuple[int, Any]:
        body = PNG + b"another" if operation.id == "uploadBlob" else BODIES.get(operation.id)
        return self.ask(operation.method, self.path(operation, real=real), headers, body)

    def bearer(self, operation: Operation, who: str, *, real: bool = True) -> int:
        return self.call(operation, {"Authorization": f"Bearer {self.bearers[who]}"}, real=real)[0]

    def ask(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> tuple[int, Any]:
        """Status and JSON (of what has some); a stream isn't read."""
        connection = http.client.HTTPConnection(self.host, timeout=60)
        given = dict(headers)
        if isinstance(body, dict):
            body, given["Content-Type"] = json.dumps(body), "application/json"
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            kind = answer.getheader("Content-Type") or ""
            return answer.status, json.loads(answer.read()) if kind.startswith("application/json") else None
        finally:
            connection.close()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with deployment(env=QUICK) as it:
        yield World(People(it))


def allowed(operation: Operation) -> int:
    """What a caller who may gets: of an operation on an object, for one that isn't there."""
    if operation.id in PLAIN:
        return PLAIN[operation.id]
    return 404 if "{" in operation.path else 200


@every
def test_nobody_and_those_who_are_somebody_no_more_get_401(world: World, operation: Operation) -> None:
    for who in ("garbage", "expired", "expired inspection", "expired executor", "revoked"):
        assert world.bearer(operation, who) == 401, who
    for headers in (
        {},
        {"Authorization": "Basic YTpi"},
        {"Cookie": "byre_session=x"},
        {"Cookie": f"byre_session={world.dead_cookie}"},
    ):
        assert world.call(operation, headers)[0] == 401, headers


@every
def test_those_who_may_get_through_and_the_others_403(world: World, operation: Operation) -> None:
    members = {"user", "manager", "machine"}
    if operation.id in EXECUTORS:
        may: set[str] = set()
    elif operation.id in BYRE:
        may = members - {"machine"}
    else:
        may = members - ({"user"} if operation.id in MANAGERS else set())
    for who in ("user", "manager", "machine", "inspection of another", "executor of another"):
        assert world.bearer(operation, who, real=who not in may) == (allowed(operation) if who in may else 403), who


@every
def test_a_bound_token_reaches_its_object_by_its_operations_only(world: World, operation: Operation) -> None:
    assert world.bearer(operation, "inspection") == (200 if operation.id in INSPECTED else 403)
    if operation.id not in EXECUTORS:
        assert world.bearer(operation, "executor") == 403
    else:
        assert world.bearer(operation, "executor", real=False) == 403


def test_an_executor_reaches_itself(world: World) -> None:
    wanted = {"executorCommands": 200, "executorRPC": 400, "executorReply": 409, "unregisterExecutor": 200}
    found = {id: world.bearer(OPERATIONS[id], "executor") for id in wanted}
    assert found == wanted


@every
def test_another_tenant_finds_nothing(world: World, operation: Operation) -> None:
    if operation.id in EXECUTORS:
        assert world.bearer(operation, "foreign") == 403
        return
    status, document = world.call(operation, {"Authorization": f"Bearer {world.bearers['foreign']}"})
    assert status == allowed(operation)
    if status < 300:
        shown = json.dumps(document)
        assert [id for id in (*world.ids.values(), world.brain, "boss") if id in shown and operation.id != "uploadBlob"] == []


@every
def test_a_cookie_is_for_byre_and_changes_things_from_our_pages_only(world: World, operation: Operation) -> None:
    cookie = {"Cookie": f"byre_session={world.cookie}"}
    ours = {**cookie, "Origin": f"http://{world.host}", "Sec-Fetch-Site": "same-origin"}
    theirs = {**cookie, "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    if operation.id not in BYRE:
        assert world.call(operation, ours)[0] == 401
        return
    assert world.call(operation, ours, real=False)[0] == allowed(operation)
    changes = operation.method != "GET"
    for headers in (theirs, cookie):
        assert world.call(operation, headers, real=changes)[0] == (403 if changes else allowed(operation))
