"""A session as a person reads it in a terminal: one line for each event, an answer while it is written.

Rules: what agents and tools print may hold anything, so control characters are shown, never sent to the terminal. Colours only
on a terminal. An answer that came in deltas isn't printed a second time when its message arrives.
"""

from __future__ import annotations

import json
import re
from typing import Any, TextIO

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
DIM, BOLD, RED, GREEN, CYAN = "2", "1", "31", "32", "36"
LONGEST = 400
"""Characters of a tool's arguments or result that are shown."""


class Screen:
    """Prints events to `out`, flushing after each."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._colour = out.isatty()
        self._written = ""

    def show(self, type: str, event: dict[str, Any]) -> None:
        """Prints one event; `event` is the whole of it, as the API gives it. Unknown types get a line with their data."""
        data = event.get("data") or {}
        if type == "assistant.delta":
            self._write(str(data.get("text", "")))
            self._written += str(data.get("text", ""))
            self._out.flush()
            return
        if type == "assistant.message":
            self._message(str(data.get("text", "")))
        else:
            self._end_of_answer()
            self._event(type, data)
        self._out.flush()

    def _message(self, text: str) -> None:
        if self._written and text.startswith(self._written):
            text = text[len(self._written) :]  # deltas may be lost; the message is whole
        elif self._written:
            self._write("\n")
        self._written = ""
        self._write(text + "\n")

    def _event(self, type: str, data: dict[str, Any]) -> None:
        if type == "user.message":
            self._line(f"> {data.get('text', '')}", BOLD)
        elif type == "assistant.thinking":
            self._line(str(data.get("text", "")), DIM)
        elif type == "tool.call":
            self._line(f"→ {data.get('name')} {_short(data.get('arguments'))}", CYAN)
        elif type == "tool.progress":
            self._line(f"  … {_short(data.get('progress'))}", DIM)
        elif type == "tool.result":
            result = data.get("result") or {}
            bad = bool(result.get("is_error") or result.get("unknown_outcome"))
            self._line(f"← {'failed: ' if bad else ''}{_short(_content(result))}", RED if bad else GREEN)
        elif type in ("turn.failed", "turn.interrupted", "rate_limited"):
            why = data.get("message") or data.get("reason") or data.get("detail") or ""
            self._line(f"{type}: {why}", RED)
        else:
            self._line(f"{type} {_short({k: v for k, v in data.items() if k != 'turn'})}".rstrip(), DIM)

    def _end_of_answer(self) -> None:
        if self._written:
            self._write("\n")
            self._written = ""

    def _line(self, text: str, colour: str) -> None:
        text = _safe(text)
        self._out.write(f"\x1b[{colour}m{text}\x1b[0m\n" if self._colour else text + "\n")

    def _write(self, text: str) -> None:
        self._out.write(_safe(text))


def _content(result: dict[str, Any]) -> Any:
    parts = result.get("content") or []
    texts = [str(part["text"]) for part in parts if isinstance(part, dict) and "text" in part]
    return "\n".join(texts) if texts else result.get("structured_content", "")


def _short(value: Any) -> str:
    if value in (None, "", {}, []):
        return ""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"


def _safe(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
