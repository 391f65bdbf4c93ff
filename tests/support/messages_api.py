"""A stand-in for the vendor's Messages API on loopback, scripted by the user's own text.

The last text of the user is played line by line; a line `@tool` ends one answer, and what follows it is the answer to the tool's result.

| line | what the model does |
|---|---|
| `@think TEXT` | a passage of reasoning |
| `@slow N MS TEXT` | TEXT again and again, N pieces, MS milliseconds apart |
| `@tool NAME JSON` | calls a tool; of the tools that it was offered the one whose name is or ends with NAME |
| `@status CODE [NAME=VALUE ...]` | answers with that HTTP status; names are headers; `times=N`: only the first N requests for this text |
| `@hang` | opens the stream, says nothing more, until the client goes away |
| `@drop [TEXT]` | closes the connection in the middle of the stream, after TEXT |
| `@malformed` | a stream that is no stream of events |
| `@error TYPE` | an `error` event within the stream |
| `@recall` | says every text of the user that the request carries, oldest first, a line each |
| `@images` | says the type and size of every image of the last message that has any |
| `@model` | says the model it was asked as |
| `@key` | says the key that it was asked with |
| `@system TEXT` | says whether the system prompt has TEXT |
| `@tools` | says the names of the tools that it was offered |
| anything else | says it |

`scripts` says what to play for texts that aren't a test's own, such as those with which byre asks for a merge.

with MessagesApi() as api:
    environment = {"ANTHROPIC_BASE_URL": api.url, "ANTHROPIC_API_KEY": "k"}
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HANG_SECONDS = 60.0


class Asked(NamedTuple):
    """One request to /v1/messages: its key, the model, and the last text of the user."""

    key: str
    model: str
    text: str
    body: dict[str, Any]


class MessagesApi:
    """The server; a context manager. `asked` has the requests so far, `running` those whose answer is being written.

    `scripts`: patterns, and what is played for a text that has one of them; `\\1` in it is the pattern's first group.
    """

    def __init__(self, scripts: dict[str, str] | None = None) -> None:
        self.scripts = dict(scripts or {})
        self.asked: list[Asked] = []
        self.tries: Counter[str] = Counter()
        self.ids = itertools.count(1)
        self.running = 0
        self.lock = threading.Lock()
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> MessagesApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)


class _Handler(BaseHTTPRequestHandler):
    api: MessagesApi
    protocol_version = "HTTP/1.1"
    timeout = 120

    def log_message(self, *_: object) -> None:
        """Silent."""

    def do_HEAD(self) -> None:
        self._plain(200, b"")

    def do_GET(self) -> None:
        self._json(404, _error("not_found_error", "no such page"))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if self.path.startswith("/v1/messages/count_tokens"):
            self._json(200, {"input_tokens": 10})
        elif not self.path.startswith("/v1/messages"):
            self._json(404, _error("not_found_error", "no such page"))
        else:
            with self.api.lock:
                self.api.running += 1
            try:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    self._answer(body)
            finally:
                with self.api.lock:
                    self.api.running -= 1

    def _answer(self, body: dict[str, Any]) -> None:
        text, done = _script(body["messages"])
        with self.api.lock:
            self.api.asked.append(Asked(self._key(), body.get("model", ""), text, body))
        found = ((re.search(pattern, text), script) for pattern, script in self.api.scripts.items())
        played = next((match.expand(script) for match, script in found if match), text)
        answers: list[list[str]] = [[]]
        for line in played.splitlines():
            answers[-1].append(line)
            if line.startswith("@tool "):
                answers.append([])
        lines = answers[min(done, len(answers) - 1)] or ["done"]
        if lines[0].startswith("@status ") and self._refuse(text, lines[0].split()[1:]):
            return
        if not body.get("stream") and lines[0] == "@malformed":
            self._plain(200, b"{rubbish")
        elif not body.get("stream"):
            self._json(200, _whole(body, [line for line in lines if not line.startswith("@")] or ["ok"]))
        else:
            self._stream(body, lines)

    def _key(self) -> str:
        return self.headers.get("x-api-key") or (self.headers.get("Authorization") or "").removeprefix("Bearer ")

    def _refuse(self, text: str, words: list[str]) -> bool:
        named = dict(word.split("=", 1) for word in words[1:])
        times = int(named.pop("times", 1_000_000))
        with self.api.lock:
            self.api.tries[text] += 1
            if self.api.tries[text] > times:
                return False
        kind = {"429": "rate_limit_error", "529": "overloaded_error", "401": "authentication_error"}.get(words[0], "api_error")
        self._json(int(words[0]), _error(kind, f"scripted {words[0]}"), named)
        return True

    def _stream(self, body: dict[str, Any], lines: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if lines[0] == "@malformed":
            self.wfile.write(b'event: message_start\ndata: {"type": "message_st\n\nrubbish\n\nevent: x\ndata: 12\n\n')
            return
        message = {
            "id": f"msg_{next(self.api.ids):08}", "type": "message", "role": "assistant", "model": body["model"],
            "content": [], "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1},
        }  # fmt: skip
        self._event("message_start", message=message)
        stop = "end_turn"
        for index, line in enumerate(line for line in lines if line.strip()):
            ended = self._line(body, index, line)
            if ended == "cut":
                return
            stop = ended or stop
        self._event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": 12})
        self._event("message_stop")

    def _line(self, body: dict[str, Any], index: int, line: str) -> str | None:
        word, _, rest = line.partition(" ")
        match word:
            case "@think":
                self._block(index, {"type": "thinking", "thinking": "", "signature": ""}, [
                    {"type": "thinking_delta", "thinking": rest}, {"type": "signature_delta", "signature": "c2ln"},
                ])  # fmt: skip
            case "@slow":
                count, pause, piece = rest.split(" ", 2)
                pieces = ({"type": "text_delta", "text": piece} for _ in range(int(count)))
                self._block(index, {"type": "text", "text": ""}, pieces, int(pause) / 1000)
            case "@tool":
                name, _, arguments = rest.partition(" ")
                offered = [tool["name"] for tool in body.get("tools", ())]
                full = next((tool for tool in offered if tool == name or tool.endswith(name)), name)
                start = {"type": "tool_use", "id": f"toolu_{next(self.api.ids):08}", "name": full, "input": {}}
                self._block(index, start, [{"type": "input_json_delta", "partial_json": arguments or "{}"}])
                return "tool_use"
            case "@hang":
                self.wfile.flush()
                self._hang()
                return "cut"
            case "@drop":
                if rest:
                    self._block(index, {"type": "text", "text": ""}, [{"type": "text_delta", "text": rest}])
                return "cut"
            case "@error":
                self._event("error", error={"type": rest, "message": f"scripted {rest}"})
                return "cut"
            case _:
                text = line if not word.startswith("@") else self._key() if word == "@key" else _said(body, word, rest)
                self._block(index, {"type": "text", "text": ""}, [{"type": "text_delta", "text": text}])
        return None

    def _hang(self) -> None:
        until = time.monotonic() + HANG_SECONDS
        self.connection.settimeout(0.1)
        while time.monotonic() < until and not self.api.closing.is_set():
            try:
                if not self.connection.recv(1):
                    return
            except TimeoutError:
                continue

    def _block(self, index: int, start: dict[str, Any], deltas: Any, pause: float = 0.0) -> None:
        self._event("content_block_start", index=index, content_block=start)
        for delta in deltas:
            self._event("content_block_delta", index=index, delta=delta)
            if pause and self.api.closing.wait(pause):
                return
        self._event("content_block_stop", index=index)

    def _event(self, kind: str, **data: Any) -> None:
        self.wfile.write(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode())
        self.wfile.flush()

    def _json(self, status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        self._plain(status, json.dumps(document).encode(), headers)

    def _plain(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


def texts(message: dict[str, Any]) -> list[str]:
    """What the user wrote in a message, without what the agent program adds to it: tags, and where it keeps an image."""
    content = message["content"]
    blocks = [content] if isinstance(content, str) else [part["text"] for part in content if part["type"] == "text"]
    return [text for text in blocks if text.strip() and not text.lstrip().startswith(("<", "[Image: source:"))]


def _script(messages: list[dict[str, Any]]) -> tuple[str, int]:
    """The last text of the user, and how many tool results have come since."""
    results = 0
    for message in reversed(messages):
        if message["role"] != "user":
            continue
        found = texts(message)
        if found:
            return found[-1], results
        results += any(isinstance(part, dict) and part["type"] == "tool_result" for part in message["content"])
    return "", results


def _said(body: dict[str, Any], word: str, rest: str) -> str:
    match word:
        case "@recall":
            said = [text for message in body["messages"] if message["role"] == "user" for text in texts(message)]
            return "\n".join(text.replace("\n", "\\n") for text in said)
        case "@images":
            held = (m["content"] for m in reversed(body["messages"]) if m["role"] == "user" and isinstance(m["content"], list))
            found = ([p for p in content if p["type"] == "image"] for content in held)
            blocks = next((images for images in found if images), [])
            return ", ".join(f"{p['source']['media_type']} {len(base64.b64decode(p['source']['data']))}" for p in blocks)
        case "@model":
            return str(body["model"])
        case "@system":
            return "yes" if rest in json.dumps(body.get("system", ""), ensure_ascii=False) else "no"
        case "@tools":
            return " ".join(tool["name"] for tool in body.get("tools", ()))
        case _:
            return f"unknown line {word}"


def _whole(body: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    return {
        "id": "msg_whole", "type": "message", "role": "assistant", "model": body["model"], "stop_reason": "end_turn",
        "stop_sequence": None, "usage": {"input_tokens": 10, "output_tokens": 1},
        "content": [{"type": "text", "text": "\n".join(lines)}],
    }  # fmt: skip


def _error(kind: str, message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
