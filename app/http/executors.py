"""Executors (tools that run in a client) over HTTP: one method per operation, named by its operationId. No rule lives here."""

from __future__ import annotations

from app.core.errors import Missing, Unsupported
from app.http.deps import Document, ExecutorService
from app.http.requests import Call
from app.http.rpc import Rpc
from app.http.sse import Followers


class Executors:
    """Handlers of `/executors`."""

    def __init__(self, executors: ExecutorService | None, followers: Followers, rpc: Rpc | None) -> None:
        self._given, self._followers, self._rpc = executors, followers, rpc

    @property
    def _executors(self) -> ExecutorService:
        if self._given is None:
            raise Unsupported("this deployment has no executors")
        return self._given

    def registerExecutor(self, call: Call) -> Document:
        return self._executors.register(call.caller, call.json())

    def executorCommands(self, call: Call) -> None:
        """Commands as server-sent events, from `ready` on, for as long as this connection is the current one."""
        executor = self._own(call)
        self._followers.attach(
            call.resp,
            call.req.env,
            call.credential,
            call.caller,
            lambda: self._executors.open(call.caller, executor),
        )

    def executorReply(self, call: Call) -> Document:
        return self._executors.reply(call.caller, self._own(call), call.json())

    def executorRPC(self, call: Call) -> None:
        """The same as a WebSocket."""
        executor = self._own(call)
        if self._rpc:
            self._rpc.serve(call, executor, call.credential.text)

    def unregisterExecutor(self, call: Call) -> Document:
        return self._executors.close(call.caller, self._own(call))

    def _own(self, call: Call) -> str:
        """The executor of the path; a credential reaches its own only."""
        if call.caller.executor != call.id:
            raise Missing("no such executor")
        return call.id
