"""The tool bridge as an MCP server on stdin and stdout: the agent program starts it, and it passes each call to the worker.

It runs as a file of its own with nothing but the standard library (`python -I -S mcp_server.py`), and knows only the few methods that
tools need. Measured with Python 3.11 on one core: 50 ms of CPU and 10 MiB until it answers; with the `mcp` package it was 1.8 s and
63 MiB, for every session that starts. That package's client is what the tests hold it against.

Rules: the socket is in BYRE_BRIDGE (protocol: server.py); one connection a call, so that closing it cancels just that call; an answer
to a cancelled call is never sent; whatever goes wrong with the worker is a result that says so, never a broken session. It ends
when its input does.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from typing import Any, BinaryIO

VERSIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Protocol versions that it speaks, newest first: for these methods they don't differ."""
AT_ONCE = 32
"""As many calls as the worker runs at once for one agent."""
CONNECT_SECONDS = 10.0
LINE_BYTES = 4 << 20

Document = dict[str, Any]


class Refused(Exception):
    """A JSON-RPC error: its code, and why."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Unreachable(Exception):
    """The worker doesn't answer; the message says what is known of the call."""


class Bridge:
    """The worker's socket."""

    def __init__(self, path: str) -> None:
        self._path = path

    def connect(self) -> socket.socket:
        """A connection, for one call. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(self._path)
            connection.settimeout(None)  # how long a call may take is the worker's to say
        except OSError:
            connection.close()
            raise
        return connection


def exchange(connection: socket.socket, asked: Document) -> Any:
    """Sends `asked` and yields the answers to it. Raises OSError, ValueError."""
    connection.sendall(json.dumps({"id": 1, **asked}).encode() + b"\n")
    with connection.makefile("rb") as lines:
        while line := lines.readline(LINE_BYTES):
            if not line.endswith(b"\n"):
                raise ValueError("a line too long, or cut short")
            yield json.loads(line)


class Server:
    """One agent's server: reads requests from `source`, writes answers to `sink`."""

    def __init__(self, bridge: Bridge, source: BinaryIO, sink: BinaryIO) -> None:
        self._bridge, self._source, self._sink = bridge, source, sink
        self._lock = threading.Lock()
        self._running: dict[Any, socket.socket | None] = {}

    def run(self) -> None:
        """Serves until its input ends."""
        while line := self._source.readline(LINE_BYTES):
            try:
                message = json.loads(line)
            except ValueError:
                self._send({"id": None, "error": {"code": -32700, "message": "not JSON"}})
                continue
            if isinstance(message, dict):
                self._take(message)
        for number in list(self._running):
            self._cancel(number)

    def _take(self, message: Document) -> None:
        method, number = message.get("method"), message.get("id")
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        if method is None:
            return  # an answer; we ask nothing
        if number is None:
            if method == "notifications/cancelled":
                self._cancel(params.get("requestId"))
            return
        with self._lock:
            full = len(self._running) >= AT_ONCE
            if not full:
                self._running[number] = None
        if full:
            self._send({"id": number, "error": {"code": -32000, "message": f"more than {AT_ONCE} calls at once"}})
            return
        if method in ("tools/call", "tools/list"):
            threading.Thread(target=self._answer, args=(number, method, params), daemon=True).start()
        else:
            self._answer(number, method, params)

    def _answer(self, number: Any, method: str, params: Document) -> None:
        answer: Document
        try:
            answer = {"id": number, "result": self._result(number, method, params)}
        except Refused as error:
            answer = {"id": number, "error": {"code": error.code, "message": error.message}}
        with self._lock:
            wanted = number in self._running
            self._running.pop(number, None)
        if wanted:
            self._send(answer)

    def _result(self, number: Any, method: str, params: Document) -> Document:
        if method == "initialize":
            asked = params.get("protocolVersion")
            return {
                "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "byre", "version": "1"},
            }
        if method == "ping":
            return {}
        if method == "tools/list":
            return self._list(number)
        if method == "tools/call":
            return self._call(number, params)
        raise Refused(-32601, f"no method {str(method)[:80]!r}")

    def _list(self, number: Any) -> Document:
        try:
            with self._connected(number) as connection:
                for answer in exchange(connection, {"list": True}):
                    return {"tools": [described(tool) for tool in answer["tools"]]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Refused(-32000, f"the session's tools can't be listed: {error}") from None
        raise Refused(-32000, "the session's tools can't be listed: the worker has closed the connection")

    def _call(self, number: Any, params: Document) -> Document:
        name, arguments = params.get("name"), params.get("arguments")
        if not isinstance(name, str):
            raise Refused(-32602, "tools/call needs a name")
        meta = params.get("_meta")
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        sent = False
        try:
            with self._connected(number) as connection:
                sent = True
                step = 0
                for answer in exchange(connection, {"tool": name, "arguments": {} if arguments is None else arguments}):
                    if "result" in answer:
                        return called(answer["result"])
                    if "progress" in answer and token is not None:
                        step += 1
                        self._progress(token, step, answer["progress"])
            raise Unreachable("the worker has closed the connection")
        except (OSError, ValueError, TypeError, Unreachable) as error:
            known = "its outcome is unknown" if sent else "it was not made"
            return {"content": [{"type": "text", "text": f"The call failed, {known}: {error}"}], "isError": True}

    def _connected(self, number: Any) -> socket.socket:
        """A connection for request `number`, which closes it when it is cancelled. Raises OSError."""
        connection = self._bridge.connect()
        with self._lock:
            if number in self._running:
                self._running[number] = connection
                return connection
        connection.close()
        raise ConnectionAbortedError("cancelled")

    def _cancel(self, number: Any) -> None:
        with self._lock:
            connection = self._running.pop(number, None)
        if connection is not None:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # it has ended by itself

    def _progress(self, token: Any, step: int, data: Any) -> None:
        """MCP wants a number that grows and may have a text: what the tool reports is the text, its own number if it has one."""
        told = data if isinstance(data, dict) else {}
        params: Document = {"progressToken": token, "progress": step}
        for field in ("progress", "total"):
            if isinstance(told.get(field), (int, float)) and not isinstance(told[field], bool):
                params[field] = told[field]
        text = told.get("message", data if isinstance(data, str) else json.dumps(data))
        self._send({"method": "notifications/progress", "params": {**params, "message": str(text)}})

    def _send(self, message: Document) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
        with self._lock:
            try:
                self._sink.write(data)
                self._sink.flush()
            except (OSError, ValueError):
                return  # the agent has closed its end, and soon ours


def described(tool: Document) -> Document:
    """A descriptor of the Brain contract as an MCP tool.

    Without its output schema: a client then refuses results that have no structured part, as one that became a blob.
    """
    schema = tool.get("input_schema")
    out: Document = {"name": tool["name"], "inputSchema": {**(schema if isinstance(schema, dict) else {}), "type": "object"}}
    if tool.get("description"):
        out["description"] = tool["description"]
    return out


def called(result: Document) -> Document:
    """A Result of the Brain contract as what MCP calls one."""
    out: Document = {"content": [part(content) for content in result.get("content", [])]}
    if result.get("is_error"):
        out["isError"] = True
    if isinstance(result.get("structured_content"), dict):
        out["structuredContent"] = result["structured_content"]
    return out


def part(content: Document) -> Document:
    """One part of a result: what MCP has no word for becomes text."""
    if content.get("type") in ("image", "audio") and "data" in content:
        return {"type": content["type"], "data": content["data"], "mimeType": content.get("mime_type", "")}
    if content.get("type") == "text":
        return {"type": "text", "text": content.get("text", "")}
    return {"type": "text", "text": json.dumps(content)}


def main() -> None:
    """Serves the bridge that the environment names."""
    path = os.environ.get("BYRE_BRIDGE")
    if not path:
        sys.exit("BYRE_BRIDGE is not set: this is started by a worker's agent, not by hand")
    Server(Bridge(path), sys.stdin.buffer, sys.stdout.buffer).run()
    os._exit(0)  # threads that wait for the worker end with us


if __name__ == "__main__":
    main()
