"""The byre operations that aren't built yet: each is routed, authenticated and authorised, and then answers 501.

A noun that gets built moves to a module of its own; its rows in `operations.py` then name that resource.
"""

from __future__ import annotations

from app.core.errors import ByreError
from app.http.operations import BYRE
from app.http.requests import Call, Handler


class NotBuilt(ByreError):
    """The operation is part of the contract and not of this version."""

    code = "unsupported"


class Byre:
    """Handlers of `/api`, by operationId."""

    def __getattr__(self, name: str) -> Handler:
        operation = BYRE.get(name)
        if operation is None or operation.resource != "byre":
            raise AttributeError(name)

        def handler(call: Call) -> None:
            raise NotBuilt(f"{call.operation.id} is not part of this version yet")

        handler.__name__ = name
        return handler
