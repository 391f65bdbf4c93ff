"""The `claude` harness: the real Claude Code CLI as a long-lived process that takes messages on stdin (docs/harness-claude.md).

Each message of ours has a UUID, and the CLI says when it takes one in (`--replay-user-messages`): that is how a steering message is
proven to be part of the turn, and how a turn that the CLI began by itself is told from ours.

Rules: a `result` line ends the turn only when our message was taken in and no steering message waits in the CLI, since it would answer
that one next; a rate limit whose reset is further off than `PARK_SECONDS` is taken off its hands by an interrupt, for it would wait with
the turn open; calls of our own tools are left out, the bridge records them. Our UUIDs are of one attempt: the CLI passes over
one that it knows.
"""

from __future__ import annotations

import base64
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

from app.core.inbox import own_questions
from workers.harness import claude_blocks as blocks
from workers.harness import claude_command, prompts
from workers.harness.base import (
    Delta,
    Failed,
    Input,
    Interrupted,
    Message,
    Output,
    Place,
    ProtocolError,
    RateLimited,
    Send,
    Steered,
    Thinking,
    ToolCall,
    ToolProgress,
    ToolResult,
    Turn,
)
from workers.harness.claude_command import MCP_PREFIX, ClaudeOptions, vendor_session
from workers.harness.claude_turn import LIMITED, Running

PARK_SECONDS = 10.0
"""A rate limit that lasts longer parks the turn: nobody's slot is held while nothing can happen."""
ASKED = "People have been asked. Their answer comes as the next message: say what you wait for, and end your turn."
REFUSED = "This needs a permission that nobody can give here."
LINE_LIMIT = 8 << 20
"""An image of 5 MB that the agent reads is a line of 7 MB."""
_SILENT = frozenset(
    {
        "keep_alive",
        "control_cancel_request",
        "auth_status",
        "tool_use_summary",
        "prompt_suggestion",
        "streamlined_text",
        "streamlined_tool_use_summary",
    }
)


class ClaudeAdapter:
    """Adapter of one CLI process. Safe for the two threads that use it."""

    name = "claude"
    line_limit = LINE_LIMIT
    steers = True

    def __init__(self, options: ClaudeOptions) -> None:
        self._options = options
        self._lock = threading.RLock()
        self._model = ""
        self._own_calls: set[str] = set()
        self._requests = 0
        self._total_cost = 0.0
        self._turn: Running | None = None

    def command(self, place: Place) -> list[str]:
        self._model = place.model
        return claude_command.command(self._options, place)

    def environment(self, place: Place) -> dict[str, str]:
        return claude_command.environment(self._options, place)

    def native_paths(self, place: Place) -> list[Path]:
        return claude_command.native_paths(place)

    def start_turn(self, turn: Turn) -> bytes:
        with self._lock:
            self._turn = Running(vendor_session(turn.turn_id))
            self._own_calls.clear()
            lines = []
            if turn.model != self._model:
                lines.append(self._control("set_model", model=turn.model or "default"))
                self._model = turn.model
            if self._options.watch_cost:
                lines.append(self._control("get_usage"))
            images = tuple(image for message in turn.inputs for image in message.images)
            lines.append(_message(self._turn.main, Input("", prompts.text_of(turn), images)))
            return b"".join(lines)

    def steer(self, steering: Input) -> bytes | None:
        """It is taken in after the tool call that runs, or else right after the answer; both are this turn."""
        with self._lock:
            turn = self._turn
            if turn is None or turn.interrupting or turn.parked:
                return None
            number = vendor_session(steering.id)
            turn.steers[number] = steering.id
            return _message(number, steering)

    def interrupt(self) -> bytes | None:
        with self._lock:
            if self._turn:
                self._turn.interrupting = True
            return self._stop()

    def set_model(self, model: str) -> bytes | None:
        with self._lock:
            self._model = model
            return self._control("set_model", model=model or "default")

    def lost(self, head: bytes, tail: bytes) -> list[Output]:
        """A `result` says its type at one of its ends, outside of any string: quotes inside of one are escaped."""
        with self._lock:
            both = head + tail
            turn = self._turn
            if turn is None or b'"type":"result"' not in both or b'"duration_ms":' not in both:
                return []
            if b'"is_error":false' in both:
                return self._end(turn.done(""))
            return self._end(Failed("agent_error", "the agent's last words were too long to read"))

    def decode(self, line: bytes) -> list[Output]:
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"not JSON: {error}", line) from error
        if not isinstance(said, dict):
            raise ProtocolError("not an object", line)
        kind = said.get("type")
        if kind in _SILENT:
            return []
        read = _READERS.get(kind) if isinstance(kind, str) else None
        if read is None:
            raise ProtocolError(f"unknown type {str(kind)[:80]!r}", line)
        try:
            with self._lock:
                return read(self, said)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"bad {kind}: {error!r}"[:300], line) from error

    # What it says while a turn runs

    def _stream_event(self, said: dict[str, Any]) -> list[Output]:
        event, turn = said["event"], self._turn
        kind = event["type"]
        if turn is None:
            return []
        if kind == "content_block_delta":
            delta = event["delta"]
            inner = said.get("parent_tool_use_id") is not None
            return [Delta(str(delta["text"]))] if delta["type"] == "text_delta" and not inner else []
        if kind == "message_start":
            turn.message_begins(event["message"].get("usage"))
        elif kind == "message_delta":
            turn.message_ends(event.get("usage"))
            asked: list[Output] = [Send(self._control("get_usage"))] if self._options.watch_cost else []
            return [turn.used(), *asked]
        return []

    def _assistant(self, said: dict[str, Any]) -> list[Output]:
        message, turn = said["message"], self._turn
        if turn is None:
            return []
        turn.timestamp = said.get("timestamp") or turn.timestamp
        if message.get("model") == "<synthetic>" or said.get("error"):
            limit = said.get("rate_limit_info")
            turn.limit = limit if isinstance(limit, dict) else turn.limit
            return []  # the `result` that follows says it as the end of the turn
        inner = said.get("parent_tool_use_id") is not None
        outputs = [self._block(block, inner) for block in message["content"]]
        return [output for output in outputs if output]

    def _block(self, block: dict[str, Any], inner: bool) -> Output | None:
        """One block of an assistant's message; `inner`: of an agent that the agent has started, whose words are for that one."""
        kind = block["type"]
        if kind == "text":
            return Message(block["text"]) if block["text"] and not inner else None
        if kind == "thinking":
            return Thinking(block["thinking"]) if block["thinking"] and not inner else None
        if kind in ("tool_use", "server_tool_use"):
            if str(block["name"]).startswith(MCP_PREFIX):
                self._own_calls.add(block["id"])
                return None
            return ToolCall(str(block["id"]), str(block["name"]), block["input"])
        if kind.endswith("_tool_result"):
            return ToolResult(str(block["tool_use_id"]), blocks.result_of(block.get("content"), block.get("is_error")))
        return None

    def _user(self, said: dict[str, Any]) -> list[Output]:
        if said.get("isReplay"):
            return self._taken_in(said.get("uuid"))
        content = said["message"]["content"]
        outputs: list[Output] = []
        for block in content if isinstance(content, list) and self._turn else ():
            if block["type"] == "tool_result" and block["tool_use_id"] not in self._own_calls:
                result = blocks.result_of(block.get("content"), block.get("is_error"))
                outputs.append(ToolResult(str(block["tool_use_id"]), result))
        return outputs

    def _tool_progress(self, said: dict[str, Any]) -> list[Output]:
        call = str(said["tool_use_id"])
        if self._turn is None or call in self._own_calls:
            return []
        return [ToolProgress(call, {"seconds": said.get("elapsed_time_seconds")})]

    def _lifecycle(self, said: dict[str, Any]) -> list[Output]:
        number, state, turn = said["command_uuid"], said["state"], self._turn
        if state in ("started", "completed"):
            return self._taken_in(number)
        if turn is None or state == "queued":
            return []
        if number == turn.main and not turn.taken:  # stopped before it began
            return self._end(turn.parked or Interrupted())
        if turn.steers.pop(number, None) and turn.held and not turn.steers:
            return self._end(turn.held)
        return []

    def _taken_in(self, number: Any) -> list[Output]:
        turn = self._turn
        if turn is None:
            return []
        turn.taken = turn.taken or number == turn.main
        steering = turn.steers.pop(number, None)
        if steering is None:
            return []
        turn.held = None  # it is answered next, and that answer ends the turn
        return [Steered(steering)]

    def _system(self, said: dict[str, Any]) -> list[Output]:
        turn = self._turn
        if said.get("subtype") != "api_retry" or turn is None or turn.parked or turn.interrupting:
            return []
        delay = float(said["retry_delay_ms"]) / 1000
        if said.get("error_status") not in LIMITED or delay < PARK_SECONDS:
            return []
        turn.parked = RateLimited(delay, f"the vendor limits requests ({said['error_status']})")
        return [Send(self._stop())]

    def _limit_event(self, said: dict[str, Any]) -> list[Output]:
        if self._turn:
            self._turn.limit = dict(said["rate_limit_info"])
        return []

    # How a turn ends

    def _result(self, said: dict[str, Any]) -> list[Output]:
        turn, before = self._turn, self._total_cost
        self._total_cost = blocks.number(said.get("total_cost_usd")) or before
        failed = said.get("is_error") is True or said["subtype"] != "success"
        if turn is None or not (turn.taken or failed):
            return []
        turn.result(said, before)
        if failed:
            return self._end(turn.failure(said))
        done = turn.done(str(said.get("result") or ""))
        if turn.steers and not turn.interrupting:
            turn.held = done
            return []
        return self._end(done)

    def _end(self, end: Output) -> list[Output]:
        self._turn = None
        return [end]

    # Requests

    def _control_response(self, said: dict[str, Any]) -> list[Output]:
        answer = said["response"]
        if answer["subtype"] == "error":
            raise ValueError(answer.get("error"))
        session = (answer.get("response") or {}).get("session")
        total = blocks.number(session.get("total_cost_usd")) if isinstance(session, dict) else None
        if total is None or self._turn is None:
            return []
        self._turn.total_cost(total)
        return [self._turn.used()]

    def _control_request(self, said: dict[str, Any]) -> list[Output]:
        """It asks for a permission or a dialog: nobody can answer here. Nor its own question: people do, by the next message."""
        request = said["request"]
        response: dict[str, Any] = {"subtype": "error", "request_id": said["request_id"], "error": "nobody can answer here"}
        if request["subtype"] == "can_use_tool":
            asks = own_questions(str(request["tool_name"]), request.get("input"))
            denied = {"behavior": "deny", "message": ASKED if asks else REFUSED}
            response = {"subtype": "success", "request_id": said["request_id"], "response": denied}
        return [Send(_line({"type": "control_response", "response": response}))]

    def _stop(self) -> bytes:
        steers = self._turn.steers if self._turn else {}
        withdrawn = [self._control("cancel_async_message", message_uuid=number) for number in steers]
        return b"".join([*withdrawn, self._control("interrupt")])

    def _control(self, subtype: str, **fields: Any) -> bytes:
        self._requests += 1
        request = {"subtype": subtype, **fields}
        return _line({"type": "control_request", "request_id": f"byre-{self._requests}", "request": request})


_READERS: dict[str, Callable[[ClaudeAdapter, dict[str, Any]], list[Output]]] = {
    "stream_event": ClaudeAdapter._stream_event,
    "assistant": ClaudeAdapter._assistant,
    "user": ClaudeAdapter._user,
    "system": ClaudeAdapter._system,
    "result": ClaudeAdapter._result,
    "tool_progress": ClaudeAdapter._tool_progress,
    "command_lifecycle": ClaudeAdapter._lifecycle,
    "rate_limit_event": ClaudeAdapter._limit_event,
    "control_response": ClaudeAdapter._control_response,
    "control_request": ClaudeAdapter._control_request,
}


def maker(options: ClaudeOptions) -> Callable[[], ClaudeAdapter]:
    """Makes one adapter for each process."""
    return functools.partial(ClaudeAdapter, options)


def _message(number: str, message: Input) -> bytes:
    content: list[dict[str, Any]] = [
        {
            "type": "image",
            "source": {"type": "base64", "media_type": image.media_type, "data": base64.b64encode(image.data).decode()},
        }
        for image in message.images
    ]
    content.append({"type": "text", "text": message.text})
    return _line({"type": "user", "uuid": number, "message": {"role": "user", "content": content}})


def _line(message: dict[str, Any]) -> bytes:
    return orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE)
