"""The native state: one file of JSON lines, only ever appended to, that holds the whole conversation.

Rules: what is remembered is in the file before the worker hears of it. A half line at the end, which a killed agent can leave,
is cut off at the next start. What a later turn needs is folded from the file at start, so a file put back from a checkpoint is
exactly that memory.
"""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE = "script.jsonl"


class Memory:
    """What the agent remembers; `path` is the file, made by the first thing to remember."""

    def __init__(self, path: str) -> None:
        self.users: list[tuple[str, str]] = []  # input id, text
        self.answers = 0
        self.tools: list[dict[str, Any]] = []
        self.parked: set[str] = set()  # ids of inputs that a /ratelimit stopped once
        self.on_conflict = "ours"
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        for entry in self._load():
            self._fold(entry)

    def user(self, input_id: str, text: str, turn_id: str) -> None:
        """A message that a turn got; one that is tried again is not remembered twice."""
        if all(input_id != known for known, _ in self.users):
            self._add({"role": "user", "id": input_id, "text": text, "turn": turn_id})

    def answer(self, text: str, count: int = 1) -> None:
        """An answer; for `count` numbered ones of an /emit one entry that describes them."""
        self._add({"role": "assistant", "text": text} | ({"count": count} if count != 1 else {}))

    def tool(self, name: str, arguments: Any, *, failed: bool) -> None:
        """A tool call that ended. Long arguments are cut to 1,000 characters of their JSON."""
        if len(short := json.dumps(arguments, ensure_ascii=False)) > 1000:
            arguments = {"cut": short[:1000]}
        self._add({"role": "tool", "name": name, "arguments": arguments, "failed": failed})

    def note(self, **what: Any) -> None:
        """Anything else: `on_conflict`, `parked` (an input id), `ended` (how a turn ended that wasn't done)."""
        self._add({"role": "note", **what})

    def _add(self, entry: dict[str, Any]) -> None:
        left = memoryview((json.dumps(entry, ensure_ascii=False, separators=(",", ":")) + "\n").encode("utf-8", "replace"))
        while left:
            left = left[os.write(self._fd, left) :]
        self._fold(entry)

    def _fold(self, entry: dict[str, Any]) -> None:
        role = entry["role"]
        if role == "user":
            self.users.append((entry["id"], entry["text"]))
        elif role == "assistant":
            self.answers += entry.get("count", 1)
        elif role == "tool":
            self.tools.append(entry)
        else:
            self.on_conflict = entry.get("on_conflict", self.on_conflict)
            if "parked" in entry:
                self.parked.add(entry["parked"])

    def _load(self) -> list[dict[str, Any]]:
        parts = []
        while part := os.read(self._fd, 1 << 20):
            parts.append(part)
        raw = b"".join(parts)
        whole = raw[: raw.rfind(b"\n") + 1]
        if len(whole) != len(raw):
            os.ftruncate(self._fd, len(whole))
        return [json.loads(line) for line in whole.splitlines()]
