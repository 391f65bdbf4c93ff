"""The documents and their reference page, served as they are to anyone.

Rules: everything here is made once, on first use, and is the same for every caller; nothing of a request or of the deployment
goes into it, so it needs no token. The page has no script and takes its style from its own path, which its
Content-Security-Policy says.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import falcon
import orjson

from app.http.reference_page import render
from app.http.schema_documents import Api, load

_CSS = Path(__file__).resolve().parent / "static" / "reference.css"
_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class _Made(NamedTuple):
    body: bytes
    etag: str


class Fixed:
    """A resource whose bytes never change while the process runs. `make` is called once, at the first request."""

    def __init__(self, content_type: str, make: Callable[[], bytes]) -> None:
        self._content_type = content_type

        @functools.cache
        def made() -> _Made:
            body = make()
            return _Made(body, hashlib.sha256(body).hexdigest()[:32])

        self._made = made

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        """The bytes, or 304 for a client that has them."""
        made = self._made()
        resp.etag = made.etag
        resp.cache_control = ["no-cache"]
        resp.set_header("X-Content-Type-Options", "nosniff")
        resp.set_header("Content-Security-Policy", _POLICY)
        if any(given == "*" or given == made.etag for given in req.if_none_match or ()):
            resp.status = falcon.HTTP_304
        else:
            resp.content_type = self._content_type
            resp.data = made.body

    def on_head(self, req: falcon.Request, resp: falcon.Response) -> None:
        """As `on_get`; the server leaves the body out."""
        self.on_get(req, resp)


def add_routes(app: falcon.App[Any, Any]) -> None:
    """Adds `/openapi/brain.json`, `/openapi/byre.json`, `/docs` and the page's style."""

    def document(api: Api) -> Callable[[], bytes]:
        return lambda: orjson.dumps(load().of(api), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)

    app.add_route("/openapi/brain.json", Fixed("application/json", document("brain")))
    app.add_route("/openapi/byre.json", Fixed("application/json", document("byre")))
    app.add_route("/docs", Fixed("text/html; charset=utf-8", lambda: render(load()).encode()))
    app.add_route("/docs/reference.css", Fixed("text/css; charset=utf-8", _CSS.read_bytes))
