"""A client of MCP servers that speak streamable HTTP, over the guarded client: lists tools, calls them.

The `mcp` package's client is not used: it brings its own HTTP and an event loop, which can't share a thread with gevent and can't be
held to our checked addresses. What is needed is small: initialize, tools/list, tools/call (MCP specification, revisions 2025-03-26 to
2025-11-25, which don't differ in these). The package's server is what the tests hold this against.

Rules: one conversation for one purpose, with one time limit; each request is a connection of its own and is sent once. An answer that isn't
what the protocol says is Lost. Requests of the server to us are answered with an error: we offer it nothing.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any

import orjson

from app.outgoing.client import Outgoing, Reply
from app.outgoing.errors import Lost, OutgoingError

OFFERED = "2025-06-18"
SPOKEN = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ANSWER_BYTES = 4 << 20
MOST_PAGES = 20
MOST_REQUESTS = 8
"""Requests of the server to us in the course of one answer."""
GOODBYE_SECONDS = 2.0
SESSION = "mcp-session-id"
Document = dict[str, Any]
_LINE = re.compile(rb"\r\n|\n|\r")
_SESSION_ID = re.compile(r"[\x21-\x7e]{1,1024}\Z")


class McpError(Exception):
    """The server refused: with a JSON-RPC error (`code`), or with a status (`status`)."""

    def __init__(self, message: str, *, code: int = 0, status: int = 0) -> None:
        super().__init__(message)
        self.code, self.status = code, status


class McpClient:
    """One conversation, from `initialize` (when the block is entered) to its end. `seconds` is for all of it.

    Everything raises OutgoingError and McpError. `calling` is true once a call of a tool was begun: before that, whatever fails has had no
    effect.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        url: str,
        headers: Mapping[str, str],
        *,
        seconds: float,
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        self._outgoing, self._url, self._stopped = outgoing, url, stopped
        self._headers = {**headers, "Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        self._until = time.monotonic() + seconds
        self._number = 0
        self.calling = False

    def __enter__(self) -> McpClient:
        us = {"name": "byre", "version": "1"}
        said = self._request("initialize", {"protocolVersion": OFFERED, "capabilities": {}, "clientInfo": us})
        version = said.get("protocolVersion")
        if version not in SPOKEN:
            raise McpError("it speaks a version of MCP that we don't")
        self._headers["MCP-Protocol-Version"] = version
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if SESSION not in self._headers or error is not None:
            return  # without an end it forgets the session by itself, as it does those of clients that are lost
        try:
            self._outgoing.send("DELETE", self._url, self._headers, seconds=GOODBYE_SECONDS)
        except OutgoingError:
            return

    def tools(self, most: int) -> list[Document]:
        """The first `most` tools, as the server describes them."""
        found: list[Document] = []
        cursor: Any = None
        for _ in range(MOST_PAGES):
            page = self._request("tools/list", {} if cursor is None else {"cursor": cursor})
            tools = page.get("tools")
            if not isinstance(tools, list):
                raise Lost("it doesn't list its tools as MCP does")
            found += [tool for tool in tools if isinstance(tool, dict)]
            cursor = page.get("nextCursor")
            if not isinstance(cursor, str) or len(found) >= most:
                break
        return found[:most]

    def call(self, tool: str, arguments: Document, progress: Callable[[Document], None]) -> Document:
        """The CallToolResult, as the server gives it. When it is told to stop, the server is told so too."""
        self.calling = True
        params = {"name": tool, "arguments": arguments, "_meta": {"progressToken": self._number + 1}}
        try:
            return self._request("tools/call", params, progress)
        except OutgoingError as error:
            if error.sent:
                self._cancel()
            raise

    def _cancel(self) -> None:
        said = {"requestId": self._number, "reason": "nobody waits for it any more"}
        notice = orjson.dumps({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": said})
        try:
            self._outgoing.send("POST", self._url, self._headers, notice, seconds=GOODBYE_SECONDS)
        except OutgoingError:
            return  # it was a courtesy

    def _request(self, method: str, params: Document, progress: Callable[[Document], None] = lambda _: None) -> Document:
        self._number += 1
        message = {"jsonrpc": "2.0", "id": self._number, "method": method, "params": params}
        answer = self._post(message, progress)
        if answer is None:
            raise Lost("it closed the answer before it was there")
        if "error" in answer:
            error = answer["error"] if isinstance(answer["error"], dict) else {}
            code = error.get("code")
            raise McpError(str(error.get("message", ""))[:500], code=code if isinstance(code, int) else 0)
        result = answer.get("result")
        if not isinstance(result, dict):
            raise Lost("its answer isn't one of MCP's")
        return result

    def _post(self, message: Document, progress: Callable[[Document], None] = lambda _: None) -> Document | None:
        """Sends a message; gives the answer to it, if it is one that has an answer."""
        wanted = message.get("id")
        declined = 0
        answer: Document | None = None
        with self._outgoing.open(
            "POST",
            self._url,
            self._headers,
            orjson.dumps(message),
            seconds=self._until - time.monotonic(),
            limit=ANSWER_BYTES,
            stopped=self._stopped,
        ) as reply:
            self._accept(reply, message)
            if wanted is None:
                return None
            for said in _messages(reply):
                if said.get("id") == wanted and ("result" in said or "error" in said):
                    answer = said
                    break
                if said.get("method") == "notifications/progress" and isinstance(said.get("params"), dict):
                    if said["params"].get("progressToken") == wanted:
                        progress({k: v for k, v in said["params"].items() if k in ("progress", "total", "message")})
                elif "method" in said and "id" in said:
                    declined += 1
                    if declined > MOST_REQUESTS:
                        raise Lost("it asks more than it answers")
                    self._decline(said["id"])
        return answer

    def _accept(self, reply: Reply, message: Document) -> None:
        if not 200 <= reply.status < 300:
            raise McpError(f"it answers with status {reply.status}", status=reply.status)
        session = reply.headers.get(SESSION, "")
        if message["method"] == "initialize" and _SESSION_ID.match(session):
            self._headers[SESSION] = session

    def _decline(self, number: Any) -> None:
        error = {"code": -32601, "message": "this client offers nothing"}
        body = orjson.dumps({"jsonrpc": "2.0", "id": number, "error": error})
        try:
            self._outgoing.send("POST", self._url, self._headers, body, seconds=GOODBYE_SECONDS)
        except OutgoingError:
            return  # it will notice


def _messages(reply: Reply) -> Iterator[Document]:
    """The JSON-RPC messages of an answer, whether it is one or a stream."""
    kind = reply.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        yield from map(_message, filter(None, _events(reply)))
    elif kind == "application/json":
        pieces = []
        while piece := reply.read():
            pieces.append(piece)
        yield _message(b"".join(pieces))
    else:
        raise Lost("its answer is neither JSON nor a stream of events")


def _message(raw: bytes) -> Document:
    try:
        said = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise Lost("its answer isn't JSON") from None
    if not isinstance(said, dict):
        raise Lost("its answer isn't one of MCP's")
    return said


def _events(reply: Reply) -> Iterator[bytes]:
    """The data of server-sent events (WHATWG HTML, section 9.2.6)."""
    data: list[bytes] = []
    rest = b""
    while piece := reply.read():
        # a carriage return at the very end may be half of a line end
        rest += piece
        whole = rest[:-1] if rest.endswith(b"\r") else rest
        *lines, _ = _LINE.split(whole)
        rest = rest[len(whole) - len(_) :]
        for line in lines:
            if not line:
                yield b"\n".join(data)
                data = []
            elif line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
