"""Stand-ins for what the HTTP tier calls: they keep everything in memory and answer like the real ones."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from typing import Any

import orjson

from app.core import sse
from app.core.errors import Conflict, Invalid, Missing, Unauthorized
from app.core.principal import Principal
from app.http.deps import Deps, Document, Limits
from app.http.schema import Validator
from app.services.tokens import Login

MANAGEMENT = Principal("acme", "management", None, "m" * 16)
OPERATOR = Principal("acme", "management", "ann", "o" * 16)
USER = Principal("acme", "user", "bob", "u" * 16)
SESSION = "0198f2c4a7b07c1d9a3e5b6f8d2c4e10"
OTHER_SESSION = "0198f2c4a9117b5ab1c3d5e7f9022446"
INSPECTOR = Principal("acme", "inspection", None, "i" * 16, session=SESSION)
EXECUTOR = Principal("acme", "executor", None, "e" * 16, executor=SESSION)
CALLERS = {
    "management": MANAGEMENT,
    "operator": OPERATOR,
    "user": USER,
    "inspection": INSPECTOR,
    "executor": EXECUTOR,
    "foreign": Principal("rival", "management", "eve", "f" * 16),
}


class FakeTokens:
    """Knows the names in `CALLERS` as tokens; `revoke` forgets one."""

    def __init__(self) -> None:
        self.callers = dict(CALLERS)
        self.asked: list[float] = []

    def authenticate(self, bearer: str, *, fresh: float = 10.0) -> Principal:
        self.asked.append(fresh)
        if bearer not in self.callers:
            raise Unauthorized("the token is not valid")
        return self.callers[bearer]

    def authenticate_cookie(self, value: str, *, fresh: float = 10.0) -> Principal:
        return self.authenticate(value.removeprefix("cookie-"), fresh=fresh)

    def login(self, bearer: str) -> Login:
        return Login(f"cookie-{bearer}", 60, self.authenticate(bearer))

    def revoke(self, bearer: str) -> None:
        self.callers.pop(bearer, None)


class FakeStream:
    """A follower that a test feeds. Counts how often it was closed."""

    def __init__(self, history: list[bytes]) -> None:
        self._ready = deque(history)
        self._changed = threading.Condition()
        self._over = False
        self.closed = 0
        self.timeouts: list[float] = []

    def push(self, data: bytes) -> None:
        with self._changed:
            self._ready.append(data)
            self._changed.notify_all()

    def end(self) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def read(self, timeout: float) -> bytes:
        self.timeouts.append(timeout)
        with self._changed:
            if not self._ready and not self._over and not self.closed:
                self._changed.wait(timeout)
            if self.closed or (self._over and not self._ready):
                raise EOFError
            data = b"".join(self._ready)
            self._ready.clear()
            return data

    def close(self) -> None:
        with self._changed:
            self.closed += 1
            self._changed.notify_all()


class FakeCommands(FakeStream):
    """A connection of an executor."""

    def commands(self, timeout: float) -> list[Document]:
        return [orjson.loads(line.removeprefix(b"data: ")) for line in self.read(timeout).splitlines() if line]


class FakeSessions:
    """One session, `SESSION`, in the tenant acme, with a log of dicts. The cursor of an event is its number as text."""

    def __init__(self) -> None:
        self.log: list[Document] = []
        self.streams: list[FakeStream] = []
        self.calls: list[tuple[str, Principal, tuple[Any, ...]]] = []
        self.error: Exception | None = None

    def _check(self, name: str, principal: Principal, id: str | None, *rest: Any) -> None:
        self.calls.append((name, principal, (id, *rest)))
        if self.error is not None:
            raise self.error
        if id is not None and (principal.tenant != "acme" or id != SESSION):
            raise Missing("no such session")

    def _document(self) -> Document:
        at = "2026-01-01T00:00:00Z"
        config = {"model": "m", "tools": []}
        return {"id": SESSION, "harness": "script", "config": config, "status": "idle", "created_at": at, "updated_at": at,
                "descriptors": []}  # fmt: skip

    def create(self, principal: Principal, body: Document) -> Document:
        self._check("create", principal, None, body)
        return {**self._document(), "harness": body["harness"]}

    def get(self, principal: Principal, id: str) -> Document:
        self._check("get", principal, id)
        return self._document()

    def list(self, principal: Principal, after: str | None, limit: int) -> Document:
        self._check("list", principal, None, after, limit)
        return {"sessions": [self._document()]}

    def close(self, principal: Principal, id: str) -> Document:
        self._check("close", principal, id)
        return {"status": "closed"}

    def send(self, principal: Principal, id: str, body: Document) -> Document:
        self._check("send", principal, id, body)
        number = str(len(self.log))
        event = {"id": f"{len(self.log):032x}", "type": body["type"], "time": "2026-01-01T00:00:00Z", "cursor": number,
                 "data": {"text": body.get("text", "")}}  # fmt: skip
        self.log.append(event)
        for stream in self.streams:
            stream.push(_frame(event))
        return event

    def withdraw(self, principal: Principal, id: str, event_id: str) -> Document:
        self._check("withdraw", principal, id, event_id)
        return {"status": "withdrawn"}

    def _from(self, after: str | None) -> int:
        if after is None:
            return 0
        if not after.isdigit():
            raise Invalid("after: not a cursor", "after")
        if int(after) >= len(self.log):
            raise Conflict("that cursor is from the future")
        return int(after) + 1

    def events(self, principal: Principal, id: str, after: str | None, limit: int) -> Document:
        self._check("events", principal, id, after, limit)
        page = self.log[self._from(after) :][:limit]
        return {"events": page, "next_cursor": page[-1]["cursor"] if page else (after or "")}

    def stream(self, principal: Principal, id: str, after: str | None) -> FakeStream:
        self._check("stream", principal, id, after)
        stream = FakeStream([_frame(event) for event in self.log[self._from(after) :]])
        self.streams.append(stream)
        return stream

    def flush(self, principal: Principal, id: str) -> Document:
        self._check("flush", principal, id)
        return self._sync()

    def sync(self, principal: Principal, id: str) -> Document:
        self._check("sync", principal, id)
        return self._sync()

    def _sync(self) -> Document:
        return {"history_bytes": 0, "resume_offset": len(self.log), "pending": False}

    def resume(self, principal: Principal, id: str) -> Document:
        self._check("resume", principal, id)
        return self._document()

    def restore(self, principal: Principal, id: str, checkpoint: str) -> Document:
        self._check("restore", principal, id, checkpoint)
        return self._document()


class FakeCatalog:
    def list(self, principal: Principal) -> Document:
        return {"tools": []}


class FakeExecutors:
    """One executor, whose id is `SESSION`, whose connection is over at once."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Principal, Any]] = []

    def register(self, principal: Principal, body: Document) -> Document:
        self.calls.append(("register", principal, body))
        return {"id": SESSION, "token": "executor"}

    def close(self, principal: Principal, executor: str) -> Document:
        self.calls.append(("close", principal, executor))
        return {"status": "closed"}

    def open(self, principal: Principal, executor: str) -> FakeCommands:
        self.calls.append(("open", principal, executor))
        commands = FakeCommands([])
        commands.end()
        return commands

    def reply(self, principal: Principal, executor: str, body: Document) -> Document:
        self.calls.append(("reply", principal, body))
        return {"status": "accepted"}


class FakeClock:
    """Monotonic seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@functools.cache
def real_schema() -> Validator:
    """The validator of our documents; compiling it takes a good part of a second."""
    return Validator()


def make_deps(**changes: Any) -> Deps:
    """Collaborators for a test; any field of Deps can be given. The schema is the real one."""
    parts: dict[str, Any] = {
        "sessions": FakeSessions(),
        "catalog": FakeCatalog(),
        "executors": FakeExecutors(),
        "tokens": FakeTokens(),
        "schema": changes.pop("schema", None) or real_schema(),
        "limits": Limits(),
        "monotonic": time.monotonic,
    }
    return Deps(**{**parts, **changes})


def _frame(event: Document) -> bytes:
    return sse.frame(orjson.dumps(event), event=event["type"], id=event["cursor"])
