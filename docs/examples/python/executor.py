"""An executor: a tool that runs here, in this process, for agents that run on the server.

BRAIN_TOKEN=... python executor.py http://127.0.0.1:8080 sse            # a new one, for sessions that are made with it
BRAIN_TOKEN=... python executor.py http://127.0.0.1:8080 websocket SESSION   # takes over the binding of a session

It prints a line of JSON each time that it is connected, and for each call.

Rules: a call that was dispatched is never sent again, so a result is sent for as long as somebody may want it and then forgotten;
a lost connection is opened again; an executor that is gone (its credential has ended, somebody closed it) is replaced by a new
one, which is bound to the sessions that the old one has served.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
from brain import SILENCE, TRIES, Brain, data, pause
from websockets.exceptions import InvalidStatus, WebSocketException
from websockets.sync.client import connect

BINDING = "calc"
TOOLS = [
    {
        "name": "add",
        "description": "Adds two numbers.",
        "input_schema": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    }
]
AT_ONCE = 8
GONE = (401, 403, 404, 409)

Document = dict[str, Any]
Reply = Callable[[Document], None]


class Gone(Exception):
    """The executor can't be used any more."""


class Executor:
    """One registration after the other; `session` is whose binding to take over."""

    def __init__(self, brain: Brain, session: str | None) -> None:
        self.brain, self.session = brain, session
        self.id = self.token = ""
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def register(self) -> None:
        """A new executor, bound to the session if one is known."""
        body: Document = {"binding": BINDING, "tools": TOOLS}
        if self.session:
            body["session"] = self.session
        made = self.brain.http.post("/executors", json=body).raise_for_status().json()
        self.id, self.token = made["id"], made["token"]

    def serve(self, transport: Callable[[Executor], Iterator[tuple[Document, Reply]]]) -> None:
        """Answers calls until somebody else has taken this executor's place, or nothing can be reached any more."""
        failed = 0
        while failed < TRIES:
            try:
                if not self.id:
                    self.register()
                for command, reply in transport(self):
                    failed = 0
                    if command["type"] == "replaced":
                        return
                    self._take(command, reply)
            except Gone:
                self.id = ""
            except httpx.HTTPStatusError as error:
                if error.response.status_code not in (429, 503):
                    raise
            except (httpx.TransportError, WebSocketException, OSError):
                pass  # lost: it is opened again
            failed += 1
            pause(failed)

    def _take(self, command: Document, reply: Reply) -> None:
        match command["type"]:
            case "ready":
                print(json.dumps({"ready": self.id}), flush=True)
            case "call":
                self.session = command["scope"]["session_id"]
                self._pool.submit(self._answer, command, reply)
            case "closed":
                raise Gone
            case "cancel" | "error":
                print(json.dumps(command), flush=True)  # a longer tool would stop now

    def _answer(self, command: Document, reply: Reply) -> None:
        at = {"connection": command["connection"], "call_id": command["call_id"]}
        print(json.dumps({"call": command["arguments"]}), flush=True)
        try:
            reply({**at, "progress": {"message": "adding"}})
            total = command["arguments"]["a"] + command["arguments"]["b"]
            reply({**at, "result": {"content": [{"type": "text", "text": f"{total:g}"}]}})
        except (httpx.HTTPError, WebSocketException, OSError) as error:
            # the connection went: the agent was told that the outcome is unknown, and nobody waits for it
            print(json.dumps({"lost": repr(error)}), flush=True)


def sse(executor: Executor) -> Iterator[tuple[Document, Reply]]:
    """Commands as server-sent events, replies as POSTs."""
    http, headers = executor.brain.http, {"Authorization": f"Bearer {executor.token}"}
    path = f"/executors/{executor.id}"

    def reply(body: Document) -> None:
        http.post(f"{path}/responses", json=body, headers=headers).raise_for_status()

    with http.stream("GET", f"{path}/commands", headers={**headers, "Accept": "text/event-stream"}) as answer:
        if answer.status_code in GONE:
            raise Gone
        if answer.status_code != 200:
            raise httpx.TransportError(f"status {answer.status_code}")
        for command in data(answer.iter_lines()):
            yield command, reply


def websocket(executor: Executor) -> Iterator[tuple[Document, Reply]]:
    """The same on one connection, both ways."""
    url = str(executor.brain.http.base_url).replace("http", "ws", 1).rstrip("/") + f"/executors/{executor.id}/rpc"
    protocols: Any = ["brain-rpc", f"brain-auth.{executor.token}"]
    try:
        with connect(url, subprotocols=protocols, proxy=None, ping_interval=SILENCE / 2, ping_timeout=SILENCE) as socket:
            for message in socket:
                yield json.loads(message), lambda body: socket.send(json.dumps(body))
    except InvalidStatus as error:
        if error.response.status_code in GONE:
            raise Gone from None
        raise


def main() -> None:
    url, transport, *session = sys.argv[1:]
    executor = Executor(Brain(url, os.environ["BRAIN_TOKEN"]), session[0] if session else None)
    executor.serve({"sse": sse, "websocket": websocket}[transport])


if __name__ == "__main__":
    main()
