"""`session/update` of an ACP agent as outputs: its chunks make deltas and, once something else comes, a whole message.

Rules: a call is told once, when its arguments are known, and its result once, when it is over; calls of our own tools are left out, the
bridge records them; an update of a kind that we don't know is passed over, for the protocol grows that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from acp import schema

from workers.harness.base import Delta, Done, Message, Output, Thinking, ToolCall, ToolProgress, ToolResult, Used
from workers.harness.claude_blocks import number, shortened
from workers.harness.claude_command import MCP_NAME

_OVER = ("completed", "failed")


class Updates:
    """Those of one turn. `tools` are the session's descriptors."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        self._own = {str(tool["name"]) for tool in tools}
        self._text: list[str] = []
        self._thought: list[str] = []
        self._last = ""
        self._calls: dict[str, dict[str, Any]] = {}  # open ones: what is known of them
        self._cost: float | None = None

    def read(self, update: Any) -> list[Output]:
        """One update. Raises KeyError, TypeError, ValueError, ValidationError for what makes no sense."""
        match update["sessionUpdate"]:
            case "agent_message_chunk":
                return self._chunk(self._text, self._thought, update, Delta)
            case "agent_thought_chunk":
                return self._chunk(self._thought, self._text, update, None)
            case "tool_call" | "tool_call_update":
                return self._call(update)
            case "plan":
                plan = schema.AgentPlanUpdate.model_validate(update)
                marks = {"completed": "x", "in_progress": "~"}
                lines = [f"- [{marks.get(entry.status, ' ')}] {entry.content}" for entry in plan.entries]
                return [*self.flush(), Thinking("\n".join(["Plan:", *lines]))]
            case "usage_update":
                cost = update.get("cost") or {}
                if cost.get("currency") == "USD":
                    return self._spent(number(cost.get("amount")))
                return []
            case _:
                return []

    def note(self, text: str) -> list[Output]:
        """Something that we say about the agent."""
        return [Message(text)]

    def flush(self) -> list[Output]:
        """What was said in pieces, whole."""
        outputs: list[Output] = []
        if self._thought:
            outputs.append(Thinking("".join(self._thought)))
        if self._text:
            self._last = "".join(self._text)
            outputs.append(Message(self._last))
        self._text.clear()
        self._thought.clear()
        return outputs

    def done(self, usage: schema.Usage | None) -> Done:
        """The normal end of the turn."""
        tokens: dict[str, Any] = {}
        if usage:
            tokens = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
            for name, count in (
                ("cache_read_input_tokens", usage.cached_read_tokens),
                ("cache_creation_input_tokens", usage.cached_write_tokens),
            ):
                tokens |= {} if count is None else {name: count}
        return Done(tokens, self._cost, self._last)

    def _chunk(self, mine: list[str], other: list[str], update: Any, delta: type[Delta] | None) -> list[Output]:
        content = update["content"]
        if content["type"] != "text":
            return []
        said = self.flush() if other else []
        mine.append(str(content["text"]))
        return [*said, *([delta(str(content["text"]))] if delta else [])]

    def _call(self, update: Any) -> list[Output]:
        call = str(update["toolCallId"])
        known = self._calls.setdefault(call, {"told": False, "content": []})
        for field in ("title", "kind", "rawInput", "rawOutput", "content", "_meta"):
            if update.get(field) is not None:
                known[field] = update[field]
        over = update.get("status") in _OVER
        outputs = self.flush()
        if self._is_own(known):
            if over:
                self._calls.pop(call)
            return outputs
        if not known["told"] and (known.get("rawInput") or over):
            known["told"] = True
            outputs.append(ToolCall(call, self._name(known), known.get("rawInput") or {}))
        elif known["told"] and not over and update.get("content"):
            outputs.append(ToolProgress(call, {"content": _parts(update["content"])}))
        if over:
            self._calls.pop(call)
            parts = _parts(known["content"]) or _raw(known.get("rawOutput"))
            failed = {"is_error": True} if update["status"] == "failed" else {}
            outputs.append(ToolResult(call, {"content": parts, **failed}))
        return outputs

    def _is_own(self, known: Mapping[str, Any]) -> bool:
        """Whether it is a call of the bridge: agents show them under names like `mcp__byre__NAME` or `byre: NAME`."""
        names = [self._name(known), str(known.get("title", ""))]
        return any(MCP_NAME in name and any(own in name for own in self._own) for name in names)

    def _name(self, known: Mapping[str, Any]) -> str:
        """The agent's own name of the tool where it tells it, else its kind, else its title."""
        for extension in (known.get("_meta") or {}).values():
            if isinstance(extension, dict) and isinstance(extension.get("toolName"), str):
                return str(extension["toolName"])
        return str(known.get("kind") or known.get("title") or "tool")

    def _spent(self, total: float | None) -> list[Output]:
        if total is None:
            return []
        self._cost = total
        return [Used({}, total)]


def _parts(content: Any) -> list[dict[str, Any]]:
    """The content of a tool call as parts of a Result."""
    parts: list[dict[str, Any]] = []
    for one in content if isinstance(content, list) else ():
        if one.get("type") == "content" and one["content"].get("type") == "text":
            text = str(one["content"]["text"])
        elif one.get("type") == "diff":
            text = f"{one.get('path')}:\n{one.get('newText', '')}"
        else:
            text = f"[{one.get('content', one).get('type')}]"
        parts.append({"type": "text", "text": shortened(text)})
    return parts


def _raw(output: Any) -> list[dict[str, Any]]:
    return [] if output is None else [{"type": "text", "text": shortened(str(output))}]
