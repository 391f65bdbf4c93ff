"""An executor for tests, over SSE or a WebSocket: it does only what the test says.

it = Executor.register(api)
with it.connect(api) as connection:
    call = connection.next("call")
    connection.result(call, text("42"))
"""

from __future__ import annotations

import contextlib
import http.client
import json
import queue
import socket
import struct
import threading
from typing import Any
from urllib.parse import urlsplit

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from tests.support.client import Client, Reply

ADD = {
    "name": "add",
    "description": "adds",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}
CALL = '/tool calc_add {"a": 1, "b": 2}'
ANY = {"name": "any", "description": "takes anything", "input_schema": True}
Document = dict[str, Any]


def text(said: str) -> Document:
    """A Result."""
    return {"content": [{"type": "text", "text": said}]}


class Connection:
    """What both kinds have in common: the commands that came, and an end."""

    def __init__(self) -> None:
        self.commands: queue.Queue[Document | None] = queue.Queue()
        self.id = ""
        self.code = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def __enter__(self) -> Connection:
        self.id = self.next("ready")["connection"]
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._thread.join(10)

    def next(self, kind: str | None = None, *, seconds: float = 20.0) -> Document:
        """The next command, which must be of this type."""
        command = self.commands.get(timeout=seconds)
        assert command is not None, f"the connection ended, and {kind} was waited for"
        assert kind in (None, command["type"]), command
        return command

    def ended(self, *, seconds: float = 20.0) -> bool:
        """Whether nothing comes any more, and the connection ends."""
        command = self.commands.get(timeout=seconds)
        assert command is None, command
        return True

    def _run(self) -> None:
        with contextlib.suppress(OSError, http.client.HTTPException, ConnectionClosed, AttributeError, ValueError):
            self._read()
        self.commands.put(None)

    def _read(self) -> None: ...

    def cut(self) -> None: ...


class Sse(Connection):
    """Commands as server-sent events."""

    def __init__(self, api: Client, executor: Executor) -> None:
        parts = urlsplit(api.info["url"])
        self._http = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
        self._http.request("GET", f"/executors/{executor.id}/commands", headers={"Authorization": f"Bearer {executor.token}"})
        self._response = self._http.getresponse()
        assert self._response.status == 200, (self._response.status, self._response.read(300))
        assert self._http.sock
        self._sock = self._http.sock
        super().__init__()

    def _read(self) -> None:
        while line := self._response.readline():
            if line.startswith(b"data:"):
                self.commands.put(json.loads(line[5:]))

    def cut(self) -> None:
        """Hangs up without a word, as a lost machine does when its connection is reset."""
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._sock.shutdown(socket.SHUT_RDWR)
        self._http.close()
        self._response.close()


class Ws(Connection):
    """The same over a WebSocket."""

    def __init__(self, api: Client, executor: Executor, *, max_size: int = 2**24) -> None:
        protocols = [Subprotocol("brain-rpc"), Subprotocol(f"brain-auth.{executor.token}")]
        self.socket: ClientConnection = connect(
            f"{api.info['url'].replace('http', 'ws', 1)}/executors/{executor.id}/rpc",
            subprotocols=protocols,
            max_size=max_size,
            compression=None,
            proxy=None,
            close_timeout=5,
        )
        super().__init__()

    def _read(self) -> None:
        try:
            for message in self.socket:
                self.commands.put(json.loads(message))
        finally:
            self.code = self.socket.close_code or 0

    def send(self, body: Any) -> None:
        """A message to the server."""
        self.socket.send(body if isinstance(body, str | bytes) else json.dumps(body))

    def cut(self) -> None:
        """Hangs up without a closing handshake."""
        with contextlib.suppress(OSError):
            self.socket.socket.shutdown(socket.SHUT_RDWR)


class Executor:
    """A registered executor."""

    def __init__(self, id: str, token: str) -> None:
        self.id, self.token = id, token

    @classmethod
    def register(cls, api: Client, *tools: Document, binding: str = "calc", session: str | None = None) -> Executor:
        """A new one with these tools (`ADD`)."""
        reply = register(api, *tools, binding=binding, session=session)
        assert reply.status == 201, reply
        return cls(reply.json["id"], reply.json["token"])

    def connect(self, api: Client, via: type[Sse] | type[Ws] = Sse) -> Sse | Ws:
        """A connection through `api`; enter it to wait until it is the current one."""
        return via(api, self)

    def post(self, api: Client, connection: str, call: str, **body: Any) -> Reply:
        """A reply by POST: `progress` or `result`."""
        sent = {"connection": connection, "call_id": call, **body}
        return api.call("POST", f"/executors/{self.id}/responses", sent, token=self.token)

    def answer(self, api: Client, call: Document, result: Document) -> None:
        """The result of a call, by POST."""
        reply = self.post(api, call["connection"], call["call_id"], result=result)
        assert reply.status == 200, reply

    def close(self, api: Client) -> Reply:
        """Ends the executor."""
        return api.call("POST", f"/executors/{self.id}/close", token=self.token)


def register(
    api: Client, *tools: Document, binding: str = "calc", session: str | None = None, token: str | None = None
) -> Reply:
    """The answer to a registration."""
    body: Document = {"binding": binding, "tools": list(tools) or [ADD]}
    return api.call("POST", "/executors", {**body, "session": session} if session else body, token=token)


def bound(api: Client, executor: Executor, *tools: Document, binding: str = "calc") -> str:
    """A new session that has the executor's tools."""
    return api.session(bindings=[{"alias": binding, "executor": executor.id, "runtime": list(tools) or [ADD]}])


def results(events: list[Document]) -> list[Document]:
    """The results of tool calls among events."""
    return [event["data"]["result"] for event in events if event["type"] == "tool.result"]


def result_of(api: Client, session: str, cursor: str) -> Document:
    """The result of the first call behind a cursor."""
    result: dict[str, Any] = api.occurs(session, "tool.result", cursor)["data"]["result"]
    return result
