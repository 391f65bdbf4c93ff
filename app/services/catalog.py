"""Tools that the deployment offers, as `GET /catalog` lists them and sessions use them.

Rules: what a provider is (endpoint, headers) never leaves this process except to that provider; out come descriptors. What an MCP server
offers is asked of it when it is needed and remembered for `FRESH_SECONDS`; when it can't be asked, what it offered last still
counts, and it is asked again after `AGAIN_SECONDS`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog

from app.core.errors import Unavailable
from app.core.principal import Principal
from app.core.tools import MOST_TOOLS, NAME, bounded, exposed
from app.outgoing.client import Outgoing
from app.outgoing.errors import OutgoingError
from app.outgoing.mcp import McpClient, McpError
from app.services.catalog_file import Entry

FRESH_SECONDS = 300.0
AGAIN_SECONDS = 15.0
LIST_SECONDS = 10.0
"""For everything that it takes to list a server's tools."""
AT_ONCE = 8
Document = dict[str, Any]

log = structlog.get_logger(__name__)


class Provider:
    """One provider of the catalog. Safe for threads and greenlets."""

    def __init__(self, entry: Entry, outgoing: Outgoing, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.entry, self.name, self.kind = entry, entry.name, entry.kind
        self._outgoing, self._monotonic = outgoing, monotonic
        self._asking = threading.Lock()
        self._tools = entry.tools
        self._good_until = float("inf") if entry.tools is not None else float("-inf")

    def tools(self) -> list[Document]:
        """Its descriptors under their own names. Raises Unavailable if it can't be asked and never could."""
        if self._monotonic() >= self._good_until:
            with self._asking:
                if self._monotonic() >= self._good_until:
                    self._ask()
        if self._tools is None:
            raise Unavailable(f"the provider {self.name} doesn't say what tools it has", retry_after=int(AGAIN_SECONDS))
        return self._tools

    def _ask(self) -> None:
        entry = self.entry
        try:
            with McpClient(self._outgoing, entry.endpoint, entry.headers, seconds=LIST_SECONDS) as client:
                self._tools = list(self._usable(client.tools(MOST_TOOLS)))
            self._good_until = self._monotonic() + FRESH_SECONDS
        except (OutgoingError, McpError) as error:
            log.warning("provider_not_listed", provider=self.name, why=str(error))
            self._good_until = self._monotonic() + AGAIN_SECONDS

    def _usable(self, offered: Iterable[Document]) -> Iterable[Document]:
        """The descriptors of what a server offers, without what can't have a name here."""
        seen: set[str] = set()
        for tool in offered:
            name, schema = tool.get("name"), tool.get("inputSchema")
            good = isinstance(name, str) and NAME.match(exposed(self.name, name)) and name not in seen
            if not good or not isinstance(schema, dict) or not bounded(tool):
                log.warning("tool_left_out", provider=self.name, tool=str(name)[:80])
                continue
            assert isinstance(name, str)
            seen.add(name)
            made = {"name": name, "description": str(tool.get("description") or ""), "input_schema": schema}
            yield {**made, "output_schema": tool["outputSchema"]} if isinstance(tool.get("outputSchema"), dict) else made


class Catalog:
    """The catalog of a deployment."""

    def __init__(self, entries: Iterable[Entry] = (), outgoing: Outgoing | None = None) -> None:
        self._outgoing = outgoing or Outgoing()
        self._providers = [Provider(entry, self._outgoing) for entry in entries]

    def list(self, principal: Principal) -> Document:
        """The descriptors that `principal`'s tenant may use, as `{provider}_{tool}`. A provider that can't be asked has none."""
        providers = self.providers(principal.tenant).values()
        tools: list[Document] = []
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="catalog") as pool:
            for provider, found in zip(providers, pool.map(_tools_or_none, providers), strict=True):
                tools += [{**tool, "name": exposed(provider.name, tool["name"])} for tool in found]
        return {"tools": list({tool["name"]: tool for tool in reversed(tools)}.values())[::-1]}

    def names(self) -> tuple[str, ...]:
        """The names of all providers, whoever may use them."""
        return tuple(provider.name for provider in self._providers)

    def providers(self, tenant: str) -> dict[str, Provider]:
        """The providers that `tenant` may use, by name."""
        return {p.name: p for p in self._providers if p.entry.tenants is None or tenant in p.entry.tenants}

    def find(self, tenant: str, name: str) -> tuple[Provider, Document] | None:
        """The provider and tool that the catalog lists as `name`, if there is one. Raises Unavailable if that can't be said."""
        unknown: Unavailable | None = None
        for provider in self.providers(tenant).values():
            if not name.startswith(exposed(provider.name, "")):
                continue
            try:
                tools = provider.tools()
            except Unavailable as error:
                unknown = error
                continue
            for tool in tools:
                if exposed(provider.name, tool["name"]) == name:
                    return provider, tool
        if unknown:
            raise unknown
        return None


def _tools_or_none(provider: Provider) -> list[Document]:
    try:
        return provider.tools()
    except Unavailable:
        return []
