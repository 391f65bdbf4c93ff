"""What tools a new session has: its `config.tools` and `config.bindings`, resolved once at creation.

Rules: a tool that doesn't exist, an executor or provider that doesn't, an executor that isn't connected, two tools of one name: each is
refused by name. What is resolved is kept with the session, so a later change of the catalog doesn't change a session.

Kept in `session.json`: `descriptors` (what the model sees), `bindings` (`{alias, kind, tools, executor | provider, parameters}`), `routes`
(exposed name -> `[index of its binding, tool]`) and `credentials` (alias -> encrypted value, base64).
"""

from __future__ import annotations

import base64
from typing import Any

import orjson

from app.core import tools as rules
from app.core.errors import Conflict, Invalid, Missing
from app.core.principal import Principal
from app.services.catalog import Catalog
from app.services.executors import Executors
from app.store.cipher import Cipher

Document = dict[str, Any]


class Resolver:
    """Resolves tools for new sessions."""

    def __init__(self, catalog: Catalog, executors: Executors, cipher: Cipher) -> None:
        self._catalog, self._executors, self._cipher = catalog, executors, cipher

    def resolve(self, principal: Principal, session: str, body: Document) -> Document:
        """The fields of `session.json` that its tools need. Raises Invalid, Conflict."""
        config = body["config"]
        bindings: list[Document] = self._from_catalog(principal, config["tools"])
        aliases: set[str] = set()
        for i, given in enumerate(config.get("bindings", [])):
            field = f"config.bindings[{i}]"
            if given["alias"] in aliases:
                raise Conflict(f"{field}.alias: two bindings are named {given['alias']!r}")
            aliases.add(given["alias"])
            bindings.append(self._binding(principal, given, field))
        descriptors, routes = _exposed(bindings)
        credentials = self._credentials(session, body.get("credentials", []), aliases)
        return {
            "descriptors": descriptors,
            "bindings": bindings,
            "routes": routes,
            "credentials": credentials,
            "credential_bindings": list(credentials),
        }

    def _from_catalog(self, principal: Principal, names: list[str]) -> list[Document]:
        out: list[Document] = []
        for i, name in enumerate(names):
            field = f"config.tools[{i}]"
            found = self._catalog.find(principal.tenant, name)
            if found is None:
                raise Invalid(f"{field}: there is no tool {name[:80]!r} in the catalog", field)
            provider, tool = found
            out.append({"alias": provider.name, "kind": provider.kind, "provider": provider.name, "tools": [tool]})
        return out

    def _binding(self, principal: Principal, given: Document, field: str) -> Document:
        if ("provider" in given) == ("executor" in given or "runtime" in given):
            raise Invalid(f"{field}: give either provider, or executor and runtime", field)
        if "provider" in given:
            return self._provided(principal, given, field)
        for name in ("operations", "parameters"):
            if name in given:
                raise Invalid(f"{field}.{name}: only a provider has it", f"{field}.{name}")
        return self._executed(principal, given, field)

    def _provided(self, principal: Principal, given: Document, field: str) -> Document:
        provider = self._catalog.providers(principal.tenant).get(given["provider"])
        if provider is None:
            raise Invalid(f"{field}.provider: there is no provider {given['provider'][:80]!r}", f"{field}.provider")
        tools = provider.tools()
        if "operations" in given:
            known = {t["name"]: t for t in tools}
            for j, operation in enumerate(given["operations"]):
                if operation not in known:
                    where = f"{field}.operations[{j}]"
                    raise Invalid(f"{where}: {provider.name} has no operation {operation[:80]!r}", where)
            tools = [known[operation] for operation in given["operations"]]
        rules.check_tools(given["alias"], tools, field)
        made = {"alias": given["alias"], "kind": provider.kind, "provider": provider.name, "tools": tools}
        if "parameters" not in given:
            return made
        if provider.kind == "mcp":
            if not isinstance(given["parameters"], dict):
                raise Invalid(
                    f"{field}.parameters: fixed arguments of an MCP server's tools are an object", f"{field}.parameters"
                )
            made["tools"] = [_without(tool, given["parameters"]) for tool in tools]
        return {**made, "parameters": given["parameters"]}

    def _executed(self, principal: Principal, given: Document, field: str) -> Document:
        alias, tools = given["alias"], given.get("runtime")
        executor = given.get("executor")
        if executor is not None:
            executor = executor.lower()
            try:
                record = self._executors.find(principal.tenant, executor)
            except Missing:
                raise Invalid(f"{field}.executor: there is no executor {executor[:80]!r}", f"{field}.executor") from None
            if record["binding"] != alias:
                raise Conflict(f"{field}.alias: that executor registered the binding {record['binding']!r}, not {alias!r}")
            if tools is None:
                tools = record["tools"]
            elif not rules.same_tools(tools, record["tools"]):
                raise Conflict(f"{field}.runtime: differs from the tools that the executor registered")
            if record["closed"] or not self._executors.connected(executor):
                raise Conflict(f"{field}.executor: the executor isn't connected; connect it first")
        assert tools is not None
        rules.check_tools(alias, tools, f"{field}.runtime")
        return {"alias": alias, "kind": "executor", "executor": executor, "tools": tools}

    def _credentials(self, session: str, given: list[Document], aliases: set[str]) -> dict[str, str]:
        out: dict[str, str] = {}
        for i, credential in enumerate(given):
            alias, field = credential["binding"], f"credentials[{i}].binding"
            if alias not in aliases:
                raise Invalid(f"{field}: there is no binding {alias[:80]!r}", field)
            if alias in out:
                raise Conflict(f"{field}: two credentials for {alias!r}")
            sealed = self._cipher.encrypt(orjson.dumps(credential["value"]), credential_context(session, alias))
            out[alias] = base64.b64encode(sealed).decode()
        return out


def _without(tool: Document, fixed: Document) -> Document:
    """The descriptor of a tool some of whose arguments are fixed: the model isn't asked for those."""
    schema = dict(tool["input_schema"])
    if isinstance(schema.get("properties"), dict):
        schema["properties"] = {name: value for name, value in schema["properties"].items() if name not in fixed}
    if isinstance(schema.get("required"), list):
        schema["required"] = [name for name in schema["required"] if name not in fixed]
    return {**tool, "input_schema": schema}


def credential_context(session: str, alias: str) -> bytes:
    """What a credential's ciphertext is bound to."""
    return f"credential:{session}:{alias}".encode()


def _exposed(bindings: list[Document]) -> tuple[list[Document], dict[str, list[Any]]]:
    descriptors: list[Document] = []
    routes: dict[str, list[Any]] = {}
    for index, binding in enumerate(bindings):
        for tool in binding["tools"]:
            name = rules.exposed(binding["alias"], tool["name"])
            if name in routes:
                raise Conflict(f"two tools of this session would be named {name!r}")
            routes[name] = [index, tool["name"]]
            descriptors.append({**tool, "name": name})
    return descriptors, routes
