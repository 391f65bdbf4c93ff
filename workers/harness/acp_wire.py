"""The JSON-RPC side of an ACP agent: requests with those who wait for their answers, and the pieces of requests."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
from acp import schema
from pydantic import BaseModel

from workers.harness import prompts
from workers.harness.base import Output, Turn
from workers.harness.claude_command import MCP_NAME, MCP_SERVER

Answered = Callable[[Any, Any], list[Output]]
"""Gets the result and the error of an answer (one is None); gives what follows from it."""


class Peer:
    """Numbers our requests and remembers who waits."""

    def __init__(self) -> None:
        self._number = 0
        self._waiting: dict[int, Answered] = {}

    def request(self, method: str, params: BaseModel, answered: Answered) -> bytes:
        """The line of a request."""
        self._number += 1
        self._waiting[self._number] = answered
        return _line({"id": self._number, "method": method, "params": _plain(params)})

    def notify(self, method: str, params: BaseModel) -> bytes:
        """The line of a notification."""
        return _line({"method": method, "params": _plain(params)})

    def answer(self, number: Any, result: BaseModel) -> bytes:
        """The line that answers a request of the agent."""
        return _line({"id": number, "result": _plain(result)})

    def refuse(self, number: Any, code: int, message: str) -> bytes:
        """The line that refuses a request of the agent."""
        return _line({"id": number, "error": {"code": code, "message": message}})

    def answered(self, said: dict[str, Any]) -> list[Output]:
        """Takes an answer of the agent. Raises ValueError for one that nobody waits for."""
        waiting = self._waiting.pop(said["id"], None) if isinstance(said.get("id"), int) else None
        if waiting is None:
            raise ValueError("an answer to no request")
        return waiting(said.get("result"), said.get("error"))


def mcp_servers(bridge: Path | None) -> list[Any]:
    """The MCP servers of a session: ours with its tools."""
    if bridge is None:
        return []
    variables = [schema.EnvVariable(name="BYRE_BRIDGE", value=str(bridge))]
    server = schema.McpServerStdio(name=MCP_NAME, command=sys.executable, args=["-I", "-S", str(MCP_SERVER)], env=variables)
    return [server]


def prompt_of(turn: Turn, *, instructions: str, images: bool) -> list[Any]:
    """The blocks of a turn's prompt. ACP has no system prompt: `instructions` go before the first one. `images`: it can see some."""
    blocks: list[Any] = []
    if instructions:
        blocks.append(schema.TextContentBlock(type="text", text=f"Instructions for this whole session:\n\n{instructions}"))
    for image in (image for message in turn.inputs for image in message.images):
        if images:
            data = base64.b64encode(image.data).decode()
            blocks.append(schema.ImageContentBlock(type="image", data=data, mime_type=image.media_type))
        else:
            text = f"[An image ({image.media_type}, {len(image.data)} bytes) belongs here, but you can't see images.]"
            blocks.append(schema.TextContentBlock(type="text", text=text))
    blocks.append(schema.TextContentBlock(type="text", text=prompts.text_of(turn)))
    return blocks


def _plain(params: BaseModel) -> Any:
    return params.model_dump(mode="json", by_alias=True, exclude_none=True)


def _line(message: dict[str, Any]) -> bytes:
    return orjson.dumps({"jsonrpc": "2.0", **message}, option=orjson.OPT_APPEND_NEWLINE)
