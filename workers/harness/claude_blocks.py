"""Pieces of the Claude Code CLI's lines as ours: content of messages, tool results, usage, reset times. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

TEXT_BYTES = 64 * 1024
"""A longer text of a tool's result loses its middle: the whole is in the agent's own memory, and its length in the log's."""
_TOKENS = {
    "input_tokens": "inputTokens",
    "output_tokens": "outputTokens",
    "cache_read_input_tokens": "cacheReadInputTokens",
    "cache_creation_input_tokens": "cacheCreationInputTokens",
}


def result_of(content: Any, is_error: Any) -> dict[str, Any]:
    """A `tool_result` block's content (text, or a list of blocks) as a Result of the Brain contract."""
    if isinstance(content, list):
        parts = [_part(block) for block in content if isinstance(block, dict)]
    else:
        parts = [_text("" if content is None else str(content))]
    return {"content": parts, **({"is_error": True} if is_error is True else {})}


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") == "text":
        return _text(str(block.get("text", "")))
    source = block.get("source")
    if isinstance(source, dict) and isinstance(source.get("data"), str):
        size = len(source["data"]) * 3 // 4
        return _text(f"[{block.get('type')} {source.get('media_type', '')}, {size} bytes]")
    return _text(f"[{block.get('type')}]")


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": shortened(text)}


def shortened(text: str) -> str:
    """`text`, without its middle if it is longer than TEXT_BYTES characters."""
    if len(text) <= TEXT_BYTES:
        return text
    half = TEXT_BYTES // 2
    return f"{text[:half]}\n[{len(text) - 2 * half} characters left out]\n{text[-half:]}"


def tokens(usage: Any) -> dict[str, int]:
    """The token counts of a `usage` object of the Messages API."""
    if not isinstance(usage, dict):
        return {}
    return {name: usage[name] for name in _TOKENS if type(usage.get(name)) is int}


def model_tokens(models: Any) -> dict[str, int]:
    """The token counts of a `modelUsage` object, over all models: sub-agents are in it."""
    found: dict[str, int] = {}
    for used in models.values() if isinstance(models, dict) else ():
        for name, theirs in _TOKENS.items():
            if isinstance(used, dict) and type(used.get(theirs)) is int:
                found[name] = found.get(name, 0) + used[theirs]
    return found


def model_cost(models: Any) -> float | None:
    """The cost in US dollars of a `modelUsage` object; None if it has none."""
    costs = [number(used.get("costUSD")) for used in models.values()] if isinstance(models, dict) else []
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known else None


def number(value: Any) -> float | None:
    """`value` if it is a number, else None."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def added(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    """Sums by name."""
    return {name: a.get(name, 0) + b.get(name, 0) for name in (*a, *(name for name in b if name not in a))}


def seconds_until(reset: Any, now: Any) -> float | None:
    """From an RFC 3339 time `now` to `reset` (Unix seconds), never negative; None if one of them isn't one."""
    at = number(reset)
    if at is None or not isinstance(now, str):
        return None
    try:
        return max(0.0, at - datetime.fromisoformat(now).timestamp())
    except ValueError:
        return None
