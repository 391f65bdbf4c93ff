"""The `script` harness: a deterministic agent that plays what a message says (docs/harness-script.md).

Rules: the agent is started in isolated mode with nothing but the standard library, by the interpreter that runs the worker. An
end of a turn counts only for the turn that was started last.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson

from workers.harness.base import (
    Delta,
    Done,
    Failed,
    Input,
    Interrupted,
    Message,
    Output,
    Place,
    ProtocolError,
    RateLimited,
    Steered,
    ToolCall,
    ToolResult,
    Turn,
)
from workers.harness.lines import LIMIT
from workers.harness.script_agent.memory import FILE

_ROOT = str(Path(__file__).resolve().parent.parent.parent)
_BOOT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from workers.harness.script_agent.main import main; main()"
_ENDS = frozenset({"done", "failed", "interrupted", "rate_limited"})


class ScriptAdapter:
    """Adapter of one script agent. `search_path` is the PATH of its commands."""

    name = "script"
    line_limit = LIMIT
    steers = True

    def __init__(self, search_path: str = "/usr/local/bin:/usr/bin:/bin") -> None:
        self._search_path = search_path
        self._turn_id = ""

    def command(self, place: Place) -> list[str]:
        """It goes on from its native state by itself, so both starts are the same."""
        return [sys.executable, "-I", "-S", "-c", _BOOT, _ROOT, str(place.home)]

    def environment(self, place: Place) -> dict[str, str]:
        environment = {"PATH": self._search_path, "HOME": str(place.home), "LANG": "C.UTF-8", **place.variables}
        return environment | ({"BYRE_BRIDGE": str(place.bridge_socket)} if place.bridge_socket else {})

    def native_paths(self, place: Place) -> list[Path]:
        return [place.home / FILE]

    def start_turn(self, turn: Turn) -> bytes:
        """Images go as type and size only: the agent says that it got them."""
        self._turn_id = turn.turn_id
        return _line(
            {
                "type": "turn",
                "turn_id": turn.turn_id,
                "purpose": turn.purpose,
                "inputs": [_message(message) for message in turn.inputs],
                "task_title": turn.task_title,
                "merge_ref": turn.merge_ref,
            }
        )

    def steer(self, steering: Input) -> bytes | None:
        return _line({"type": "steer", "turn_id": self._turn_id, **_message(steering)})

    def interrupt(self) -> bytes | None:
        return _line({"type": "interrupt", "turn_id": self._turn_id})

    def set_model(self, model: str) -> bytes | None:
        """Any model will do: it has none."""
        return b""

    def decode(self, line: bytes) -> list[Output]:
        try:
            said = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"not JSON: {error}", line) from error
        if not isinstance(said, dict):
            raise ProtocolError("not an object", line)
        kind = said.get("type")
        if kind == "delta" and type(said.get("text")) is str:
            return [Delta(said["text"])]
        try:
            return [self._output(kind, said)]
        except (KeyError, TypeError, ValueError) as error:
            raise ProtocolError(f"bad {kind!r}: {error}", line) from error

    def lost(self, head: bytes, tail: bytes) -> list[Output]:
        """It cuts its texts, so an end is never that long: such a line is one of `/emit`."""
        return []

    def _output(self, kind: Any, said: dict[str, Any]) -> Output:
        if kind in _ENDS and said["turn_id"] != self._turn_id:
            raise ValueError("the end of another turn")
        match kind:
            case "message":
                return Message(_text(said, "text"))
            case "tool_call":
                return ToolCall(_text(said, "id"), _text(said, "name"), said["arguments"])
            case "tool_result":
                return ToolResult(_text(said, "id"), dict(said["result"]))
            case "steered":
                return Steered(_text(said, "id"))
            case "done":
                return Done(dict(said["usage"]), None, _text(said, "text"))
            case "failed":
                return Failed(_text(said, "code"), _text(said, "message"))
            case "interrupted":
                return Interrupted()
            case "rate_limited":
                return RateLimited(float(said["reset_seconds"]), _text(said, "detail"))
            case _:
                raise ValueError("unknown type")


def _message(message: Input) -> dict[str, Any]:
    images = [{"media_type": image.media_type, "bytes": len(image.data)} for image in message.images]
    return {"id": message.id, "text": message.text, "images": images}


def _text(said: dict[str, Any], name: str) -> str:
    if not isinstance(value := said[name], str):
        raise TypeError(f"{name} is not text")
    return value


def _line(command: dict[str, Any]) -> bytes:
    return orjson.dumps(command, option=orjson.OPT_APPEND_NEWLINE)
