"""Executors (tools that run in a client) over HTTP: one method per operation, named by its operationId.

Until executors are built, every operation says so after the caller has been checked.
"""

from __future__ import annotations

from app.core.errors import Unsupported
from app.http.deps import Document
from app.http.requests import Call


class Executors:
    """Handlers of `/executors`."""

    def registerExecutor(self, call: Call) -> Document:
        raise _not_built()

    def executorCommands(self, call: Call) -> None:
        raise _not_built()

    def executorReply(self, call: Call) -> Document:
        raise _not_built()

    def executorRPC(self, call: Call) -> None:
        raise _not_built()

    def unregisterExecutor(self, call: Call) -> Document:
        raise _not_built()


def _not_built() -> Unsupported:
    return Unsupported("this deployment has no executors")
