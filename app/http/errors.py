"""The one place where errors become HTTP.

Rules: the status comes from the error's class, the shape from the contract that the path belongs to: Brain's `{"error":
{"code", "message"}, "request_id"}`, byre's `{"message"}`. An error that nobody foresaw answers 500 without a word of its own
text, and is logged with the request's id.
"""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import falcon
import orjson
import redis.exceptions
import structlog

from app.core.errors import (
    ByreError,
    Conflict,
    Corrupt,
    CursorUnavailable,
    Fenced,
    Forbidden,
    Invalid,
    Missing,
    Overloaded,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
)
from app.http.byre import NotBuilt
from app.http.requests import JSON, Request, UnsupportedMediaType
from app.store.contract import StoreError

log = structlog.get_logger(__name__)

STATUS: dict[type[ByreError], int] = {
    Invalid: 400,
    UnsupportedMediaType: 415,
    Unauthorized: 401,
    Forbidden: 403,
    Missing: 404,
    Conflict: 409,
    CursorUnavailable: 409,
    Fenced: 409,
    TooLarge: 413,
    Unsupported: 422,
    Overloaded: 429,
    Corrupt: 500,
    NotBuilt: 501,
    Unavailable: 503,
}

_BROKEN = "the server failed; its log has the reason under this request id"
_CODES = {401: "unauthorized", 403: "forbidden", 404: "not_found", 409: "conflict", 413: "body_limit", 422: "unsupported",
          429: "overloaded", 503: "unavailable"}  # fmt: skip
_UNREACHABLE: tuple[type[Exception], ...] = (
    StoreError,
    redis.exceptions.RedisError,
    botocore.exceptions.BotoCoreError,
    botocore.exceptions.ClientError,
)


def install(app: falcon.App[Request, falcon.Response]) -> None:
    """Makes every error of `app` answer in the contract's shape."""
    app.add_error_handler(Exception, _unforeseen)
    app.add_error_handler(falcon.HTTPError, _falcon)
    for kind in _UNREACHABLE:
        app.add_error_handler(kind, _unreachable)
    app.add_error_handler(ByreError, _ours)


def is_byre(path: str) -> bool:
    """Whether a path belongs to the byre contract (else to Brain's, as everything outside both does)."""
    return path.startswith("/api/") or path in ("/api", "/login", "/logout")


def body(path: str, code: str, message: str, request_id: str) -> bytes:
    """The error's JSON in the shape of the contract that `path` belongs to."""
    if is_byre(path):
        return orjson.dumps({"message": message})
    return orjson.dumps({"error": {"code": code, "message": message}, "request_id": request_id})


def answer(req: Request, resp: falcon.Response, status: int, code: str, message: str) -> None:
    """Fills `resp` with an error."""
    resp.status = status
    resp.content_type = JSON
    resp.stream = None
    resp.data = body(req.path, code, message, req.request_id)
    resp.set_header("Cache-Control", "no-store")


def _ours(req: Request, resp: falcon.Response, error: ByreError, _params: dict[str, Any]) -> None:
    status = next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)
    if status is None:
        _unforeseen(req, resp, error, _params)
        return
    if status == 500:
        damaged = {"object": error.key} if isinstance(error, Corrupt) else {}
        log.error("request_failed", request_id=req.request_id, operation=req.operation, error=str(error), **damaged)
    if isinstance(error, CursorUnavailable):
        resp.set_header("Byre-Earliest-Cursor", error.earliest)
    elif isinstance(error, Overloaded | Unavailable):
        resp.set_header("Retry-After", str(error.retry_after))
    elif isinstance(error, Unauthorized):
        resp.set_header("WWW-Authenticate", "Bearer")
    answer(req, resp, status, error.code, error.message)


def _falcon(req: Request, resp: falcon.Response, error: falcon.HTTPError, _params: dict[str, Any]) -> None:
    if error.headers is not None:
        resp.set_headers(error.headers)
    status = error.status_code
    code = _CODES.get(status, "invalid_request" if status < 500 else "brain_error")
    answer(req, resp, status, code, _say(req, error, status))


def _say(req: Request, error: falcon.HTTPError, status: int) -> str:
    if status == 404:
        return "there is nothing at this path"
    if status == 405:
        return f"{req.method} is not possible here"
    return str(error.description or error.title or "the request can't be served")


def _unreachable(req: Request, resp: falcon.Response, error: Exception, _params: dict[str, Any]) -> None:
    log.warning("unreachable", request_id=req.request_id, operation=req.operation, error=repr(error))
    resp.set_header("Retry-After", "2")
    answer(req, resp, 503, Unavailable.code, "the object store or Redis can't be reached")


def _unforeseen(req: Request, resp: falcon.Response, error: Exception, _params: dict[str, Any]) -> None:
    log.error("request_failed", request_id=req.request_id, operation=req.operation, exc_info=error)
    answer(req, resp, 500, "brain_error", _BROKEN)
