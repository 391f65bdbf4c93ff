"""One call of an operation, as its handler sees it: who calls, the checked body, the checked parameters.

Rules: nothing of a request is used before it is checked, and no body is read beyond the limit. Where a field is at fault the
error names it.
"""

from __future__ import annotations

import re
import secrets
import time
from typing import Any, Protocol

import falcon

from app.core.errors import Invalid, TooLarge
from app.core.principal import Principal
from app.http.auth import Credential
from app.http.deps import Schema
from app.http.operations import Operation

JSON = "application/json"
_PIECE = 1 << 16
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")


class UnsupportedMediaType(Invalid):
    """The body is of another content type than the operation takes: 415."""


class Request(falcon.Request):
    """Falcon's request with what every answer needs: its id, when it came, and the operation once the route is known."""

    __slots__ = ("operation", "request_id", "started")

    def __init__(self, env: dict[str, Any], options: falcon.RequestOptions | None = None) -> None:
        super().__init__(env, options)
        self.started = time.monotonic()
        self.request_id = request_id(env.get("HTTP_X_REQUEST_ID"))
        self.operation: str | None = None


def request_id(given: str | None) -> str:
    """The id under which a request is found in the logs: `given` (of X-Request-ID) if it is harmless there, else a new one."""
    return given if given is not None and _SANE_ID.match(given) else secrets.token_hex(16)


class Call:
    """A request that is authenticated and allowed. `params` are those of the path, ids in lower case."""

    __slots__ = ("_limit", "_schema", "caller", "credential", "operation", "params", "req", "resp")

    def __init__(
        self, req: Request, resp: falcon.Response, caller: Principal, operation: Operation, params: dict[str, str],
        schema: Schema, limit: int, credential: Credential,
    ) -> None:  # fmt: skip
        self.req = req
        self.resp = resp
        self.caller = caller
        self.operation = operation
        self.params = params
        self._schema = schema
        self._limit = limit
        self.credential = credential

    @property
    def id(self) -> str:
        """The object that the path names."""
        return self.params["id"]

    def json(self) -> Any:
        """The body, parsed and checked. Raises Invalid, UnsupportedMediaType (415) or TooLarge."""
        raw = read_body(self.req, self._limit)
        require_json(self.req, raw)
        return self._schema.check_body(self.operation.id, raw)

    def checked(self, operation_id: str, raw: bytes) -> Any:
        """A message on an open connection, checked as the body of an operation is. Raises Invalid."""
        return self._schema.check_body(operation_id, raw)

    def query(self) -> dict[str, Any]:
        """The query parameters, checked, numbers as numbers, defaults filled in; an empty one counts as left out. Raises
        Invalid.
        """
        given = {name: value for name, value in self.req.params.items() if value}
        return self._schema.check_query(self.operation.id, given)

    def header(self, name: str) -> str | None:
        """A described header, checked. Raises Invalid."""
        given = self.req.get_header(name)
        return self._schema.check_headers(self.operation.id, {name: given}).get(name) if given else None


class Handler(Protocol):
    """Serves one operation. What it returns is sent as JSON; None means that it has filled in the response itself."""

    def __call__(self, call: Call, /) -> Any: ...


def check_size(req: falcon.Request, limit: int) -> None:
    """Refuses a body by its announced size, before a byte of it is read. Raises TooLarge."""
    if (req.content_length or 0) > limit:
        raise _too_large(limit)


def read_body(req: falcon.Request, limit: int) -> bytes:
    """The whole body, at most `limit` bytes of it in memory. Raises TooLarge; Invalid if it breaks off or its chunks are
    malformed.
    """
    check_size(req, limit)
    pieces: list[bytes] = []
    size = 0
    stream = req.bounded_stream if req.content_length is not None else req.stream
    while True:
        try:
            piece = stream.read(_PIECE)
        except Exception as error:  # whatever the server makes of broken framing, a lost connection or its deadline
            raise Invalid("the body could not be read to its end") from error
        if not piece:
            break
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
    if size < (req.content_length or 0):
        raise Invalid("the body is shorter than its Content-Length")
    return b"".join(pieces)


def require_json(req: falcon.Request, raw: bytes) -> None:
    """Raises UnsupportedMediaType unless the body says that it is plain JSON (or is empty and says nothing)."""
    encoding = req.get_header("Content-Encoding")
    if encoding and encoding.strip().lower() != "identity":
        raise UnsupportedMediaType("bodies with a Content-Encoding are not taken")
    kind = (req.content_type or "").partition(";")[0].strip().lower()
    if kind != JSON and (kind or raw):
        raise UnsupportedMediaType(f"the content type must be {JSON}")


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body is over {limit} bytes")
