"""What the HTTP tier needs of the rest, as protocols and one plain record.

Rules: `create_app` gets all its collaborators from here and builds none; nothing in this package reads the environment or
opens a connection. The protocols say what is called and what it may raise (errors of `app/core/errors.py`); the fakes in the
tests fulfil them too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from app.core.principal import Principal
from app.http.drain import Drain
from app.push.vapid import Vapid
from app.services.agents import Agents
from app.services.answers import Answers
from app.services.blobs import Blobs
from app.services.inbox import Inbox
from app.services.merging import Merging
from app.services.projects import Projects
from app.services.push_devices import PushDevices
from app.services.starts import Starts
from app.services.status import Status
from app.services.tasks import Tasks
from app.services.tokens import Login
from app.services.users import Users
from app.services.workspace_stream import WorkspaceEvents

Document = dict[str, Any]


class Stream(Protocol):
    """One follower of a log, at the place where it was opened.

    `read` gives whole SSE frames, as many as are ready, joined; b"" when `timeout` seconds passed without one; EOFError when
    nothing will come any more. `close` may be called from another greenlet, also twice: it lets go of everything, and a
    `read` that waits raises EOFError.
    """

    def read(self, timeout: float) -> bytes: ...

    def close(self) -> None: ...


class SessionService(Protocol):
    """Brain sessions. Every method raises Missing for a session that isn't in the caller's tenant."""

    def create(self, principal: Principal, body: Document) -> Document: ...

    def get(self, principal: Principal, id: str) -> Document: ...

    def list(self, principal: Principal, after: str | None, limit: int) -> Document: ...

    def close(self, principal: Principal, id: str) -> Document: ...

    def send(self, principal: Principal, id: str, body: Document) -> Document: ...

    def withdraw(self, principal: Principal, id: str, event_id: str) -> Document: ...

    def events(self, principal: Principal, id: str, after: str | None, limit: int) -> Document: ...

    def stream(self, principal: Principal, id: str, after: str | None) -> Stream:
        """Checks everything, the cursor too, before it returns: what it raises is still an error status."""
        ...

    def flush(self, principal: Principal, id: str) -> Document: ...

    def sync(self, principal: Principal, id: str) -> Document: ...

    def resume(self, principal: Principal, id: str) -> Document: ...

    def restore(self, principal: Principal, id: str, checkpoint: str) -> Document: ...


class CatalogService(Protocol):
    """Tools that the deployment offers to a tenant."""

    def list(self, principal: Principal) -> Document: ...


class CommandStream(Stream, Protocol):
    """One connection of an executor; `commands` gives what `read` does, unframed."""

    def commands(self, timeout: float) -> list[Document]: ...


class ExecutorService(Protocol):
    """Executors. Every method but `register` raises Missing for one that isn't in the caller's tenant."""

    def register(self, principal: Principal, body: Document) -> Document: ...

    def close(self, principal: Principal, executor: str) -> Document: ...

    def open(self, principal: Principal, executor: str) -> CommandStream: ...

    def reply(self, principal: Principal, executor: str, body: Document) -> Document: ...


@dataclass(frozen=True)
class ByreServices:
    """The services of byre: one per noun; each method is one operation."""

    users: Users
    projects: Projects
    tasks: Tasks
    agents: Agents
    starts: Starts
    inbox: Inbox
    answers: Answers
    merging: Merging
    events: WorkspaceEvents
    blobs: Blobs
    devices: PushDevices
    vapid: Vapid
    status: Status


class Authenticator(Protocol):
    """Turns a bearer token into a caller. Raises Unauthorized; Unavailable if it can't find out."""

    def authenticate(self, bearer: str, *, fresh: float = ...) -> Principal: ...

    def authenticate_cookie(self, value: str, *, fresh: float = ...) -> Principal:
        """The same for the cookie of a browser."""
        ...

    def login(self, bearer: str) -> Login:
        """A cookie for a token. Raises Forbidden for one without a login."""
        ...


class Schema(Protocol):
    """Checks requests against our own documents. Raises Invalid, naming the field and why."""

    def check_body(self, operation_id: str, raw: bytes) -> Any: ...

    def check_query(self, operation_id: str, given: Mapping[str, str | list[str]]) -> dict[str, Any]: ...

    def check_headers(self, operation_id: str, given: Mapping[str, str]) -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one API process. Sizes are bytes, times seconds."""

    body: int = 1 << 20
    max_streams: int = 10_000
    max_streams_per_token: int = 100
    heartbeat: float = 10.0
    slow: float = 30.0
    """A stream's client that takes nothing of what is sent for so long is cut off."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """A number that a collaborator keeps and `/metrics` shows. `name` without the prefix; `total`: it only grows."""

    name: str
    help: str
    value: Callable[[], float]
    total: bool = False


@dataclass(frozen=True)
class Deps:
    """Collaborators of the HTTP tier. `ready` names what `/readyz` asks: each raises when it can't be reached."""

    sessions: SessionService
    catalog: CatalogService
    tokens: Authenticator
    schema: Schema
    ready: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    gauges: tuple[Gauge, ...] = ()
    executors: ExecutorService | None = None
    byre: ByreServices | None = None
    public_url: str = ""
    drain: Drain = field(default_factory=Drain)
    monotonic: Callable[[], float] = time.monotonic
