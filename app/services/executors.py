"""Executors: tools that run in a client, and the connections on which they are called.

Rules: an executor belongs to a tenant and names one binding; rebinding gives a session whose executor went another one with the same
tools, never other tools. The record is in the store; which connection is current is in Redis.
"""

from __future__ import annotations

import secrets
import threading
from typing import Any

import orjson

from app.coord.executors import ExecutorRouting, Gone, Taken
from app.core.errors import ByreError, Conflict, Invalid, Missing, Overloaded, Unavailable
from app.core.principal import Principal
from app.core.tools import check_tools, same_tools
from app.log import heads
from app.log.heads import LogHead
from app.log.hub import Hub
from app.log.log import Log
from app.services.tokens import Tokens
from app.services.writer import Clock
from app.store import keys
from app.store.contract import Absent, Store, StoreError
from app.store.keys import LogName
from app.store.puts import create_json, read_json, update_json

ASK_SECONDS = 4.0
"""Each connection asks at least this often for commands, which also says that it lives."""
Document = dict[str, Any]


class Executors:
    """All executors of a deployment."""

    def __init__(self, store: Store, log: Log, routing: ExecutorRouting, tokens: Tokens, hub: Hub | None, clock: Clock) -> None:
        self._store, self._log, self._routing, self._tokens = store, log, routing, tokens
        self._hub, self._clock = hub, clock

    def register(self, principal: Principal, body: Document) -> Document:
        """A new executor, `{id, token}`; with `session` it takes over that session's binding. Raises Invalid, Conflict, Missing."""
        binding, tools = body["binding"], body["tools"]
        check_tools(binding, tools, "tools")
        executor = self._clock.id()
        record = {"id": executor, "binding": binding, "tools": tools, "created_at": self._clock.text(), "closed": False}
        create_json(self._store, keys.executor(principal.tenant, executor), record)
        if body.get("session"):
            try:
                self._rebind(principal, body["session"].lower(), binding, tools, executor)
            except ByreError:
                self._store.delete(keys.executor(principal.tenant, executor))
                raise
        return {"id": executor, "token": self._tokens.executor_credential(principal.tenant, executor)}

    def _rebind(self, principal: Principal, session: str, binding: str, tools: list[Document], executor: str) -> None:
        if not keys.is_id(session):
            raise Missing("no such session")

        def change(head: LogHead) -> Document:
            bindings: list[Document] = head.doc.get("bindings", [])
            mine = next((b for b in bindings if b["alias"] == binding and b["kind"] == "executor"), None)
            if mine is None:
                raise Conflict(f"session {session} has no executor binding {binding!r}")
            if not same_tools(mine["tools"], tools):
                raise Conflict(f"the tools differ from those that session {session} was created with")
            return {"bindings": [{**b, "executor": executor} if b is mine else b for b in bindings]}

        name = LogName(principal.tenant, session)
        self._log.keep(name, heads.change(self._store, name, change, self._log.pace))

    def find(self, tenant: str, executor: str) -> Document:
        """The record. Raises Missing, also for another tenant's."""
        try:
            return read_json(self._store, keys.executor(tenant, executor))[0]
        except (Absent, ValueError):
            raise Missing("no such executor") from None

    def close(self, principal: Principal, executor: str) -> Document:
        """Ends the executor: pending calls get unknown outcomes, later ones are unavailable. Idempotent."""
        self.find(principal.tenant, executor)
        key = keys.executor(principal.tenant, executor)
        update_json(self._store, key, lambda doc: None if doc["closed"] else {**doc, "closed": True})
        self._routing.drop(executor)
        return {"status": "closed"}

    def connected(self, executor: str) -> bool:
        """Whether it has a live connection."""
        return self._routing.current(executor)

    def open(self, principal: Principal, executor: str) -> Connection:
        """A new current connection. Raises Missing, Conflict for a closed executor."""
        if self.find(principal.tenant, executor)["closed"]:
            raise Conflict("the executor is closed")
        assert self._hub
        return Connection(self, principal.tenant, executor, self._routing, self._hub)

    def reply(self, principal: Principal, executor: str, body: Document) -> Document:
        """Takes progress or the result of a call. Raises Invalid for both or neither, Conflict for stale, duplicate or unsolicited ones."""
        if ("progress" in body) == ("result" in body):
            raise Invalid("send exactly one of progress and result", "result")
        kind, payload = ("R", body["result"]) if "result" in body else ("P", body["progress"])
        taken = self._routing.reply(executor, body["connection"], body["call_id"], kind, orjson.dumps(payload))
        if taken is Taken.FULL:
            raise Overloaded("too much progress of this call waits to be recorded")
        if taken is Taken.STALE:
            raise Conflict("the connection is stale, or no such call is open on it")
        return {"status": "accepted"}

    def scope(self, scope: Document, seconds: int) -> Document:
        """The scope of a call as its executor gets it: with a token that reads the call's session for `seconds`."""
        token = self._tokens.inspection(scope["tenant_id"], scope["session_id"], seconds=seconds)
        return {**scope, "inspection_token": token}


class Connection:
    """One live connection of an executor, whatever carries it. `read` and `close` as a follower's; made current when created."""

    def __init__(self, executors: Executors, tenant: str, executor: str, routing: ExecutorRouting, hub: Hub) -> None:
        self.id = secrets.token_hex(16)
        self._executors, self._tenant, self._executor, self._routing = executors, tenant, executor, routing
        self._wake = threading.Event()
        self._over = False
        self._first = True
        self._unlisten = hub.hear(routing.channel(executor), self._heard)
        try:
            routing.connect(executor, self.id)
        except BaseException:
            self._unlisten()
            raise
        self._wake.set()

    def commands(self, timeout: float) -> list[Document]:
        """The next commands, empty when `timeout` seconds pass, or less. Raises EOFError when the connection is over."""
        if self._first:
            self._first = False
            return [{"type": "ready", "connection": self.id}]
        if not self._over and self._wake.wait(min(timeout, ASK_SECONDS)):
            self._wake.clear()
        if self._over:
            raise EOFError
        try:
            taken = self._routing.take(self._executor, self.id)
            if isinstance(taken, Gone):
                self._over = True
                return self._last_words(taken)
        except Unavailable:
            # Redis may have forgotten this connection: the client connects again
            self._over = True
            raise EOFError from None
        if len(taken) >= 64:
            self._wake.set()
        return [self._command(orjson.loads(c)) for c in taken]

    def read(self, timeout: float) -> bytes:
        """The same as server-sent events."""
        return b"".join(b"data: " + orjson.dumps(c) + b"\n\n" for c in self.commands(timeout))

    def close(self) -> None:
        """Ends it: open calls are settled. Idempotent."""
        self._over = True
        self._wake.set()
        self._unlisten()
        try:
            self._routing.drop(self._executor, self.id)
        except Unavailable:
            return  # it runs out by itself

    def _command(self, command: Document) -> Document:
        seconds = command.pop("seconds", 0)
        if "scope" in command:
            command["scope"] = self._executors.scope(command["scope"], seconds)
        return {**command, "connection": self.id}

    def _last_words(self, gone: Gone) -> list[Document]:
        """What the client is told before its connection ends. Raises EOFError if it had better just connect again."""
        if gone is Gone.REPLACED:
            return [{"type": "replaced", "connection": self.id}]
        try:
            if self._executors.find(self._tenant, self._executor)["closed"]:
                return [{"type": "closed", "connection": self.id}]
        except (ByreError, StoreError):
            pass  # it can't be looked up now: the client finds out when it connects again
        raise EOFError

    def _heard(self, message: bytes) -> None:
        self._wake.set()
