"""Calls of tools that a provider of the catalog answers: an `http` endpoint, or an `mcp` server.

Rules: a call is sent once. What fails before a byte of it was sent is tried again, a few times, and is then a definite error; what fails
after that is an unknown outcome, and so is a 5xx answer, a 303, and an answer that makes no sense. Any other refusal (4xx) is definite.
Neither the agent nor an event ever sees an endpoint, a header or a credential: errors don't name them, and what an endpoint gives back
is masked.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import orjson
import structlog

from app.core.redact import Redactor
from app.core.tools import bounded, result_fault, text_result
from app.outgoing.client import Outgoing
from app.outgoing.errors import NotSent, OutgoingError, Refused
from app.outgoing.mcp import McpClient, McpError
from app.services.catalog import Catalog, Provider
from app.services.catalog_file import header_fault
from workers.tools import Call, texts

TRIES = 3
"""How often a call is begun that could not be sent."""
FIRST_WAIT = 0.3
"""Seconds before the second of them, doubled for the next, half of it by chance."""
ANSWER_BYTES = 4 << 20
PROGRESS_BYTES = 16 << 10
_DEFINITE_CODES = (-32700, -32600, -32601, -32602)  # JSON-RPC 2.0, section 5.1: the request was not taken

Document = dict[str, Any]
log = structlog.get_logger(__name__)


class _Way(NamedTuple):
    """One call on its way to its provider. `left`: seconds until it must be over; `mask` hides what the provider alone may know."""

    call: Call
    provider: Provider
    left: Callable[[], float]
    mask: Redactor


class ProviderCalls:
    """All calls of one worker to providers of one kind."""

    def __init__(self, catalog: Catalog, outgoing: Outgoing, kind: str) -> None:
        self._catalog, self._outgoing = catalog, outgoing
        self._ask = {"http": self._http, "mcp": self._mcp}[kind]
        self._kind = kind

    def call(self, call: Call) -> Document:
        """The provider's Result, or one that says why there is none."""
        provider = self._catalog.providers(call.scope["tenant_id"]).get(call.binding["provider"])
        if provider is None or provider.kind != self._kind:
            return text_result("the tool's provider is not in the catalog any more", error=True)
        until = call.deadline
        if provider.entry.seconds is not None:
            until = min(until, time.monotonic() + provider.entry.seconds)
        mask = Redactor([*provider.entry.secrets, *texts(call.credential), call.scope["inspection_token"]])
        way = _Way(call, provider, lambda: max(0.0, until - time.monotonic()), mask)
        result: Document = mask.value(self._tried(way))
        return result

    def _tried(self, way: _Way) -> Document:
        """Asks until it could be sent. Waiting ends when the call is cancelled or its time is over."""
        wait = FIRST_WAIT
        for left in reversed(range(TRIES)):
            try:
                return self._ask(way)
            except NotSent as error:
                log.warning("call_not_sent", provider=way.provider.name, why=str(error), left=left)
                pause = wait * random.uniform(0.5, 1.0)  # noqa: S311
                if not left or pause >= way.left() or way.call.cancelled.wait(pause):
                    return text_result(f"the tool can't be reached, so the call was not made: {error}", error=True)
                wait *= 2
            except Refused as error:
                log.error("provider_refused", provider=way.provider.name, why=str(error))
                return text_result(f"the tool can't be called: {error}", error=True)
            except OutgoingError as error:
                log.warning("call_lost", provider=way.provider.name, call=way.call.id, why=str(error))
                return text_result(f"the call was sent, and its outcome is unknown: {error}", unknown=True)
        raise AssertionError

    def _http(self, way: _Way) -> Document:
        call = way.call
        body = {
            "call": {"id": call.id, "name": call.tool, "arguments": call.arguments},
            "scope": call.scope,
            "parameters": call.binding.get("parameters"),
            "credential": call.credential,
        }
        headers = {**way.provider.entry.headers, "Content-Type": "application/json", "Accept": "application/json"}
        answer = self._outgoing.send(
            "POST",
            way.provider.entry.endpoint,
            headers,
            orjson.dumps(body),
            seconds=way.left(),
            limit=ANSWER_BYTES,
            stopped=call.cancelled.is_set,
        )
        if not 200 <= answer.status < 300:
            return _refused(answer.status)
        try:
            result = orjson.loads(answer.body)
        except orjson.JSONDecodeError:
            return text_result("the tool's answer isn't JSON; the outcome is unknown", unknown=True)
        fault = result_fault(result)
        if fault:
            return text_result(f"the tool's answer is no Result: {fault}; the outcome is unknown", unknown=True)
        good: Document = result
        return good

    def _mcp(self, way: _Way) -> Document:
        call, entry = way.call, way.provider.entry
        more = credential_headers(call.credential)
        if more is None:
            return text_result(f"the credential of {call.binding['alias']} doesn't suit an MCP server", error=True)
        if not isinstance(call.arguments, dict):
            return text_result("an MCP tool takes an object of arguments", error=True)
        theirs = {name.lower() for name in more}
        headers = {name: value for name, value in entry.headers.items() if name.lower() not in theirs} | more
        arguments = {**call.arguments, **(call.binding.get("parameters") or {})}

        def progress(data: Document) -> None:
            if bounded(data) and len(orjson.dumps(data)) <= PROGRESS_BYTES:
                call.progress(way.mask.value(data))

        client = McpClient(self._outgoing, entry.endpoint, headers, seconds=way.left(), stopped=call.cancelled.is_set)
        try:
            with client:
                return mcp_result(client.call(call.tool, arguments, progress))
        except OutgoingError as error:
            if client.calling or isinstance(error, Refused):
                raise
            raise NotSent(str(error)) from error  # greeting it has no effect
        except McpError as error:
            if error.status:
                return _refused(error.status) if client.calling else _refused_greeting(error)
            if client.calling and error.code not in _DEFINITE_CODES:
                return text_result(f"the tool failed, and its outcome is unknown: {error}", unknown=True)
            return text_result(f"the tool refused the call: {error}", error=True)


def _refused(status: int) -> Document:
    if 400 <= status < 500:
        return text_result(f"the tool refused the call with status {status}", error=True)
    if 300 <= status < 400 and status != 303:  # 303 says: done, see there (RFC 9110, section 15.4.4)
        return text_result(f"the tool answers with a redirect (status {status}), which is not followed", error=True)
    return text_result(f"the tool answers with status {status}; the outcome is unknown", unknown=True)


def _refused_greeting(error: McpError) -> Document:
    return text_result(f"the tool's server doesn't take calls, so the call was not made: {error}", error=True)


def credential_headers(credential: Any) -> dict[str, str] | None:
    """The headers that carry a credential to an MCP server: a text is a bearer token, `{"headers": {...}}` are headers.

    None if it is neither.
    """
    if credential is None:
        return {}
    headers = {"Authorization": f"Bearer {credential}"} if isinstance(credential, str) else None
    if isinstance(credential, dict) and list(credential) == ["headers"] and isinstance(credential["headers"], dict):
        headers = credential["headers"]
    if headers is None or not all(isinstance(v, str) and header_fault(k, v) is None for k, v in headers.items()):
        return None
    return headers


def mcp_result(given: Document) -> Document:
    """A CallToolResult as a Result of the Brain contract. What that has no place for is told as text."""
    if not isinstance(given.get("content", []), list) or not bounded(given):
        return text_result("the tool's answer is no MCP result; the outcome is unknown", unknown=True)
    result: Document = {"content": list(_contents(given.get("content", [])))}
    if isinstance(given.get("structuredContent"), dict):
        result["structured_content"] = given["structuredContent"]
    if given.get("isError") is True:
        result["is_error"] = True
    return result


def _contents(parts: Iterable[Any]) -> Iterable[Document]:
    for part in parts:
        match part:
            case {"type": "text", "text": str(text)}:
                yield {"type": "text", "text": text}
            case {"type": "image" | "audio" as kind, "data": str(data), "mimeType": str(mime)}:
                yield {"type": kind, "data": data, "mime_type": mime}
            case {"type": "resource", "resource": {"text": str(text)}}:
                yield {"type": "text", "text": text}
            case {"type": "resource", "resource": {"blob": str(data), **resource}}:
                yield {"type": "resource", "data": data, "mime_type": str(resource.get("mimeType", "application/octet-stream"))}
            case {"type": "resource_link", "uri": str(uri)}:
                yield {"type": "text", "text": uri}
            case _:
                yield {"type": "text", "text": "[a part of the answer that can't be shown]"}
