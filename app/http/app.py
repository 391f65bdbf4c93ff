"""The WSGI application: routes from the table of operations, each behind the same few steps.

Rules: every operation is authenticated, authorised, its ids checked and its body's size checked before its handler sees it,
in that order; what a handler returns is sent as JSON with the status of its row. Unknown paths are 404 and other methods 405
without asking who calls.
"""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import falcon
import orjson

from app.core import ids
from app.core.errors import Invalid, Missing
from app.http import errors, login, rpc
from app.http.auth import admit, credential
from app.http.byre import Byre
from app.http.catalog import Catalog
from app.http.deps import Deps
from app.http.drain import Drain
from app.http.executors import Executors
from app.http.metrics import Metrics
from app.http.operations import OPERATIONS, Operation
from app.http.probes import add_probes
from app.http.requests import JSON, Call, Handler, Request, check_size
from app.http.sessions import Sessions
from app.http.sse import Followers
from app.store import keys

_ID_PARAMS = ("id", "event_id")
Responder = Callable[..., None]


class App(falcon.App[Request, falcon.Response]):
    """The application, with the switch that its server turns when the process is told to stop."""

    drain: Drain
    followers: Followers

    def __call__(self, env: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        """One request. A WebSocket is served to its end in here; StopIteration then tells the server that nothing is to be answered."""
        rpc.credential(env)
        try:
            return super().__call__(env, start_response)
        except rpc.Upgraded:
            raise StopIteration from None


class _Envelope:
    """What every response gets, also errors: the request's id, and its place in the counts."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def process_response(self, req: Request, resp: falcon.Response, resource: object, req_succeeded: bool) -> None:
        resp.set_header("X-Request-ID", req.request_id)
        self._metrics.observe(req, resp)


def create_app(deps: Deps) -> App:
    """The application over its collaborators. Opens nothing and starts nothing."""
    followers = Followers(deps.tokens, deps.limits, deps.drain, deps.monotonic)
    metrics = Metrics(followers.__len__, deps.gauges)
    app = App(request_type=Request, middleware=[_Envelope(metrics)])
    app.drain, app.followers = deps.drain, followers
    errors.install(app)
    handlers: dict[str, object] = {
        "sessions": Sessions(deps.sessions, followers),
        "catalog": Catalog(deps.catalog),
        "executors": Executors(deps.executors, followers, _rpc(deps, followers)),
        "byre": Byre(deps.byre, followers),
    }
    _add_operations(app, deps, handlers)
    add_probes(app, deps, metrics)
    login.add_routes(app, deps)
    _add_reference(app)
    return app


def _rpc(deps: Deps, followers: Followers) -> rpc.Rpc | None:
    return rpc.Rpc(deps.executors, deps.tokens, followers, deps.drain, deps.limits.body) if deps.executors else None


def _add_operations(app: App, deps: Deps, handlers: dict[str, object]) -> None:
    by_path: dict[str, SimpleNamespace] = defaultdict(SimpleNamespace)
    for operation in OPERATIONS.values():
        responder = _responder(operation, getattr(handlers[operation.resource], operation.id), deps)
        setattr(by_path[operation.path], f"on_{operation.method.lower()}", responder)
        if operation.method == "GET":
            by_path[operation.path].on_head = responder
    for path, route in by_path.items():
        app.add_route(path, route)


def _responder(operation: Operation, handler: Handler, deps: Deps) -> Responder:
    limit = operation.largest or deps.limits.body

    def respond(req: Request, resp: falcon.Response, **params: str) -> None:
        req.operation = operation.id
        shown = credential(operation, req)
        caller = admit(operation, deps.tokens, shown, req, params, deps.public_url)
        for name in params:
            params[name] = _id(name, params[name]) if name in _ID_PARAMS else _name(name, params[name])
        check_size(req, limit)
        resp.status = operation.status
        document = handler(Call(req, resp, caller, operation, params, deps.schema, limit, shown))
        if document is not None:
            resp.data = orjson.dumps(document)
            resp.content_type = JSON
            resp.set_header("Cache-Control", "no-store")

    respond.operation = operation  # type: ignore[attr-defined]  # for who walks the routes
    respond.handler = handler  # type: ignore[attr-defined]
    return respond


def _id(name: str, text: str) -> str:
    normal = ids.normal(text)
    if normal is None:
        raise Invalid(f"{name}: must be 32 hexadecimal characters", name)
    return normal


def _name(name: str, text: str) -> str:
    """An id of byre: it has no set form, so it can only be unknown."""
    if not keys.is_name(text):
        raise Missing(f"nothing has this id ({name})")
    return text


def _add_reference(app: App) -> None:
    """The documents and their page, where they are part of this build."""
    if importlib.util.find_spec("app.http.reference") is not None:
        importlib.import_module("app.http.reference").add_routes(app)
