"""Executors over a WebSocket: the same commands and replies as over SSE and POST, on one connection.

Rules: the credential comes as a subprotocol (`brain-auth.TOKEN`); a request with an Origin is refused, since a web page has no
business here. A reply that can't be taken is answered with a command of type `error`, and the connection goes on. The credential is
asked again at the pace of heartbeats. A WebSocket counts as a stream, and is bounded with them.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import orjson
import structlog

from app.core.errors import ByreError, Forbidden, Invalid, Unauthorized
from app.http.deps import Authenticator, CommandStream, Document, ExecutorService
from app.http.drain import Drain
from app.http.requests import Call
from app.http.sse import Followers
from app.http.websocket import PING_SECONDS, Closed, WebSocket

PROTOCOL = "brain-rpc"
AUTH = "brain-auth."
GOING_AWAY, POLICY = 1001, 1008  # RFC 6455, section 7.4.1

log = structlog.get_logger(__name__)


class Upgraded(BaseException):
    """The connection was a WebSocket and has ended: there is nothing to answer."""


def credential(env: dict[str, Any]) -> None:
    """Moves the credential of a WebSocket request from its subprotocols to where every request has it."""
    if env.get("HTTP_UPGRADE", "").lower() != "websocket" or not env["PATH_INFO"].endswith("/rpc"):
        return
    offered = [p.strip() for p in env.get("HTTP_SEC_WEBSOCKET_PROTOCOL", "").split(",")]
    token = next((p.removeprefix(AUTH) for p in offered if p.startswith(AUTH)), "")
    if token and PROTOCOL in offered:
        env["HTTP_AUTHORIZATION"] = f"Bearer {token}"
        env["HTTP_SEC_WEBSOCKET_PROTOCOL"] = PROTOCOL  # the answer must not repeat the token


class Rpc:
    """Serves WebSockets of executors."""

    def __init__(
        self, executors: ExecutorService, tokens: Authenticator, followers: Followers, drain: Drain, limit: int
    ) -> None:
        self._executors, self._tokens, self._followers = executors, tokens, followers
        self._drain, self._limit = drain, limit

    def serve(self, call: Call, executor: str, token: str) -> None:
        """Upgrades the request and serves it to its end; always raises: Upgraded, or what refuses the request."""
        env = call.req.env
        if env.get("HTTP_ORIGIN"):
            raise Forbidden("web pages can't connect here")
        if env.get("HTTP_UPGRADE", "").lower() != "websocket":
            raise Invalid("this is a WebSocket: send the upgrade and the subprotocols brain-rpc and brain-auth.TOKEN")
        if env.get("HTTP_SEC_WEBSOCKET_PROTOCOL") != PROTOCOL:
            raise Unauthorized("offer the subprotocols brain-rpc and brain-auth.TOKEN")
        self._followers.enter(call.caller)
        try:
            self._serve(call, executor, token)
        finally:
            self._followers.leave(call.caller)
        raise Upgraded

    def _serve(self, call: Call, executor: str, token: str) -> None:
        stream = self._executors.open(call.caller, executor)
        try:
            socket = WebSocket(call.req.env, PROTOCOL, self._limit)
        except BaseException:
            stream.close()
            raise
        self._drain.register(socket, stream.close)
        sender = threading.Thread(target=self._send, args=(socket, stream, token), name="rpc", daemon=True)
        sender.start()
        try:
            with contextlib.suppress(Closed):
                while True:
                    self._take(call, executor, socket, socket.receive())
        finally:
            self._drain.forget(socket)
            stream.close()
            sender.join(5)

    def _send(self, socket: WebSocket, stream: CommandStream, token: str) -> None:
        code = GOING_AWAY
        try:
            while True:
                commands = stream.commands(PING_SECONDS)
                for command in commands:
                    socket.send(orjson.dumps(command).decode())
                if not commands:
                    self._tokens.authenticate(token, fresh=PING_SECONDS)
        except EOFError:
            pass
        except Unauthorized:
            code = POLICY
        except Closed:
            return
        except ByreError as error:
            log.warning("rpc_cut", error=error.message)
        socket.close(code)

    def _take(self, call: Call, executor: str, socket: WebSocket, raw: bytes) -> None:
        try:
            body: Document = call.checked("executorReply", raw)
            self._executors.reply(call.caller, executor, body)
        except ByreError as error:
            refused = {"type": "error", **_named(raw), "code": error.code, "message": error.message}
            socket.send(orjson.dumps(refused).decode())


def _named(raw: bytes) -> Document:
    try:
        said = orjson.loads(raw)
    except orjson.JSONDecodeError:
        said = None
    fields = said if isinstance(said, dict) else {}
    return {name: fields[name] for name in ("connection", "call_id") if isinstance(fields.get(name), str)}
