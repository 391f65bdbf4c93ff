"""One turn: who said what, in which order, and how it ends.

Rules: a message is remembered when the turn gets it; an answer when it is said. Steering is confirmed when it is taken in,
which is after the line that plays. A turn ends with one output, written after everything is remembered.
"""

from __future__ import annotations

import json
import os
from collections import deque

from workers.harness.script_agent import tools
from workers.harness.script_agent.memory import Memory
from workers.harness.script_agent.merge import Merge, MergeFailed
from workers.harness.script_agent.wire import Interrupted, Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_PARTS = ("Goal", "Decisions", "State", "Dead ends", "Open questions", "Files")


class Fail(Exception):
    """Ends the turn as failed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class Parked(Exception):
    """Ends the turn by a rate limit that resets in `seconds`."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Player:
    """Plays turns; what the lines of a message (`play_line`) work with: `wire`, `memory`, the workspace `root`, tools."""

    def __init__(self, wire: Wire, memory: Memory, bridge: tools.Bridge, play_line: Callable[[Player, str], None]) -> None:
        self.wire, self.memory, self._bridge, self._play_line = wire, memory, bridge, play_line
        self.root = os.getcwd()  # noqa: PTH109 - no pathlib: it is slow to import
        self.input_id = ""
        self._turn_id, self._last = "", ""
        self._calls = self._words_in = self._words_out = 0
        self._lines: deque[tuple[str, str]] = deque()

    def play(self, turn: dict[str, Any]) -> None:
        """Plays `turn` to its end. Raises Gone."""
        self._turn_id, self._last = turn["turn_id"], ""
        self._calls = self._words_in = self._words_out = 0
        self._lines.clear()
        try:
            self._perform(turn)
        except Interrupted:
            self._end("interrupted")
        except Parked as parked:
            self.memory.note(parked=self.input_id)
            detail = f"rate limited for {parked.seconds:g} s"
            self._end("rate_limited", reset_seconds=parked.seconds, detail=detail)
        except Fail as failure:
            self._end("failed", code=failure.code, message=failure.message)
        except MergeFailed as failure:
            self._end("failed", code="merge_failed", message=str(failure))
        except OSError as error:
            code = "disk_full" if tools.is_full(error) else "io_error"
            self._end("failed", code=code, message=f"{error.strerror}: {error.filename or 'the native state'}")
        else:
            usage = {"input_tokens": self._words_in, "output_tokens": self._words_out}
            self.wire.send("done", turn_id=self._turn_id, usage=usage, text=self._last)

    # -- what lines do

    def say(self, text: str) -> None:
        """A message."""
        self.remember_answer(text)
        self.wire.send("message", text=text)

    def remember_answer(self, text: str, count: int = 1) -> None:
        """Notes an answer that is written to the wire by the caller."""
        self.memory.answer(text, count)
        self._words_out += len(text.split()) * count
        self._last = text

    def own_tool(self, name: str, arguments: Any, work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """A tool call of the agent's own: `work()` answers its Result. A call that an error or interrupt ends has one too."""
        call_id = self._begin_call(name, arguments)
        try:
            outcome = work()
        except (OSError, Interrupted) as error:
            why = f"{error.strerror}: {error.filename or name}" if isinstance(error, OSError) else "interrupted"
            outcome = tools.result(why, failed=True)
            self._end_call(call_id, name, arguments, outcome)
            raise
        self._end_call(call_id, name, arguments, outcome)
        return outcome

    def shell(self, shown: str, argv: list[str], env: dict[str, str]) -> tuple[int, str]:
        """A command as a tool call; its exit status and output."""
        status, output = 0, ""

        def work() -> dict[str, Any]:
            nonlocal status, output
            status, output = tools.run(self.wire, argv, env)
            end = "" if output.endswith("\n") or not output else "\n"
            return tools.result(f"{output}{end}[exit status {status}]", failed=status != 0)

        self.own_tool("shell", {"command": shown}, work)
        return status, output

    def bridged_tool(self, name: str, arguments: Any) -> None:
        """A tool of the session, over the bridge; the worker shows call and result."""
        try:
            outcome = self._bridge.call(self.wire, name, arguments)
            trouble = "this session has no tool bridge"
        except OSError as error:
            outcome, trouble = None, f"the tool bridge can't be reached: {error.strerror}"
        if outcome is None:
            self.own_tool(name, arguments, lambda: tools.result(trouble, failed=True))
        else:
            self.memory.tool(name, arguments, failed=bool(outcome.get("is_error")))

    # -- purposes

    def _perform(self, turn: dict[str, Any]) -> None:
        for message in turn["inputs"]:
            self._take(message, turn["task_title"])
        if turn["purpose"] == "handoff":
            self.say(self._handoff())
        elif turn["purpose"] == "merge_in":
            self._play_lines()
            title = turn["task_title"] or "Work so far"
            run = lambda argv, env: tools.run(self.wire, argv, env)  # noqa: E731
            shown = lambda argv, env: self.shell(" ".join(["git", *_words(argv)]), argv, env)  # noqa: E731
            self.say(Merge(run, shown, turn["merge_ref"], title).play(self.memory.on_conflict))
        else:
            self._play_lines()

    def _take(self, message: dict[str, Any], task_title: str | None) -> None:
        text = message["text"]
        first = not self.memory.users
        self.memory.user(message["id"], text, self._turn_id)
        self._words_in += len(text.split())
        lines = [line.removesuffix("\r") for line in text.split("\n") if line.strip()]
        self._lines.extend((message["id"], line) for line in lines or [text])
        for image in message.get("images", ()):
            self.say(f"You sent an image: {image['media_type']}, {image['bytes']} bytes")
        if first and task_title is not None and not any(line.startswith("/") for line in lines):
            path = _file_name(task_title)
            body = f"# {task_title}\n\n{text}\n"
            self.own_tool("write_file", {"path": path, "text": body}, lambda: tools.write_file(self.root, path, body))

    def _play_lines(self) -> None:
        while True:
            self.wire.check()
            while self.wire.steers:
                self._steer(self.wire.steers.popleft())
            if not self._lines:
                return
            self.input_id, line = self._lines.popleft()
            self._play_line(self, line)

    def _steer(self, message: dict[str, Any]) -> None:
        waiting = list(self._lines)
        self._lines.clear()
        self.wire.send("steered", id=message["id"])
        self._take(message, None)
        self._lines.extend(waiting)

    def _handoff(self) -> str:
        memory = self.memory
        written = [call["arguments"].get("path") for call in memory.tools if call["name"] == "write_file"]
        asked = [call["arguments"].get("question") for call in memory.tools if call["name"] == "ask_human"]
        failed = [call["name"] for call in memory.tools if call["failed"]]
        content = {
            "Goal": memory.users[0][1] if memory.users else "None was given.",
            "Decisions": f"Conflicts in a merge: {memory.on_conflict}.",
            "State": f"{len(memory.users)} messages, {memory.answers} answers, {len(memory.tools)} tool calls.",
            "Dead ends": _list(f"the call of {name} failed" for name in failed),
            "Open questions": _list(str(question) for question in asked if question),
            "Files": _list(dict.fromkeys(str(path) for path in written if path)),
        }
        return "\n\n".join(f"## {part}\n{content[part]}" for part in _PARTS)

    # -- outputs

    def _begin_call(self, name: str, arguments: Any) -> str:
        self._calls += 1
        call_id = f"{self._turn_id}.{self._calls}"
        self.wire.send("tool_call", id=call_id, name=name, arguments=arguments)
        return call_id

    def _end_call(self, call_id: str, name: str, arguments: Any, outcome: dict[str, Any]) -> None:
        self.memory.tool(name, arguments, failed=bool(outcome.get("is_error")))
        self.wire.send("tool_result", id=call_id, result=outcome)

    def _end(self, how: str, **fields: Any) -> None:
        try:
            self.memory.note(ended=how)
        except OSError:
            how, fields = "failed", {"code": "disk_full", "message": "no room for the native state"}
        self.wire.send(how, turn_id=self._turn_id, **fields)


def _list(items: Any) -> str:
    return "\n".join(f"- {item}" for item in items) or "None."


def _file_name(title: str) -> str:
    """A file named after a task: its letters and digits in lower case, the rest hyphens."""
    kept = "".join(letter if letter.isalnum() else " " for letter in title.lower())
    return ("-".join(kept.split())[:60].strip("-") or "task") + ".md"


def _words(argv: list[str]) -> list[str]:
    """A git command line without its options for safety, as it is shown."""
    rest = argv[1:]
    while rest[:1] == ["-c"]:
        rest = rest[2:]
    return [word if word and " " not in word else json.dumps(word, ensure_ascii=False) for word in rest]
