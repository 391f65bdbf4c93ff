"""The tool catalog of a deployment as it is written down: a JSON document, checked whole before anything uses it.

Rules: `schemas/catalog.json` says what it may hold; what is wrong is one line that names the place and repeats no value, for that might be
a secret. Secrets are references, resolved here, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import orjson

from app.core.errors import ByreError, Invalid
from app.core.tools import bounded, check_tools, exposed
from app.outgoing.client import check_headers
from app.outgoing.errors import Refused
from app.store.contract import Absent, Store, check_key

MOST_BYTES = 4 << 20
SECRET_BYTES = 8192
_OURS = {"content-type", "accept", "user-agent", "mcp-session-id", "mcp-protocol-version"}
_SCHEMA = Path(__file__).resolve().parents[2] / "schemas" / "catalog.json"
_SAYS: dict[str, Callable[[Any], str]] = {
    "type": lambda wanted: f"must be of type {' or '.join([wanted] if isinstance(wanted, str) else wanted)}",
    "enum": lambda wanted: f"must be one of {', '.join(wanted)}",
    "pattern": lambda wanted: f"must match {wanted}",
    "oneOf": lambda _: "must have either env or file",
    "uniqueItems": lambda _: "must not repeat anything",
}
Document = dict[str, Any]


class Entry(NamedTuple):
    """One provider. `headers` are sent with every request, `secrets` are the secret parts of them; `tenants` None: all of them; `seconds`:
    longest call, None for the deployment's limit; `tools` None: the provider is to be asked."""

    name: str
    kind: str
    endpoint: str
    headers: dict[str, str]
    secrets: tuple[str, ...]
    tenants: frozenset[str] | None
    seconds: float | None
    tools: list[Document] | None


def read(place: str, bucket: Callable[[str], Store]) -> bytes:
    """The catalog at `place`: the absolute path of a file, or s3://BUCKET/KEY. Raises Invalid, StoreError."""
    if place.startswith("s3://"):
        name, _, key = place.removeprefix("s3://").partition("/")
        store = bucket(f"s3://{name}")
        try:
            large = store.head(check_key(key)).size > MOST_BYTES
            raw = b"" if large else store.get(key).body
        except (Absent, ValueError):
            raise Invalid("there is no such object") from None
        finally:
            store.close()
    else:
        try:
            with Path(place).open("rb") as file:
                raw = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise Invalid(f"can't be read: {error.strerror}") from None
        large = len(raw) > MOST_BYTES
    if large:
        raise Invalid(f"is larger than {MOST_BYTES >> 20} MiB")
    return raw


def parse(raw: bytes, environment: Mapping[str, str], check: Callable[[str], object]) -> list[Entry]:
    """The providers of a catalog. `check` raises Refused for an endpoint that must not be called. Raises Invalid: one line."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise Invalid(f"isn't JSON: {error}") from None
    if not bounded(document):
        raise Invalid("has too many levels or values")
    validator = jsonschema.Draft202012Validator(orjson.loads(_SCHEMA.read_bytes()))
    wrong = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if wrong is not None:
        raise Invalid(f"{_place(wrong) or 'the document'}: {_what(wrong)}")
    entries = [_entry(given, f"providers[{i}]", environment, check) for i, given in enumerate(document["providers"])]
    _distinct(entries)
    return entries


def header_fault(name: str, value: str) -> str | None:
    """Why a provider can't be sent this header; None if it can."""
    if name.lower() in _OURS:
        return "is not for you to set"
    try:
        check_headers({name: value})
    except Refused as error:
        return str(error)
    return None


def _entry(given: Document, where: str, environment: Mapping[str, str], check: Callable[[str], object]) -> Entry:
    try:
        check(given["endpoint"])
    except Refused as error:
        raise Invalid(f"{where}.endpoint: {error} (BYRE_OUTGOING_ALLOW can name its host)") from None
    headers: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in given.get("headers", {}).items():
        place = f"{where}.headers[{name[:80]!r}]"
        if not isinstance(value, str):
            secrets.append(_secret(value, place, environment))
            value = value.get("prefix", "") + secrets[-1]
        refused = header_fault(name, value)
        if refused:
            raise Invalid(f"{place}: {refused}")
        headers[name] = value
    tools = given.get("tools")
    if tools is not None:
        _check(given["name"], tools, f"{where}.tools")
    tenants = frozenset(given["tenants"]) if "tenants" in given else None
    return Entry(given["name"], given["kind"], given["endpoint"], headers, tuple(secrets), tenants, given.get("seconds"), tools)


def _secret(reference: Document, place: str, environment: Mapping[str, str]) -> str:
    if "env" in reference:
        secret = environment.get(reference["env"], "").strip()
        if not secret:
            raise Invalid(f"{place}: the environment variable {reference['env']} is not set")
        return secret
    path = Path(reference["file"])
    try:
        with path.open("rb") as file:
            secret = file.read(SECRET_BYTES).decode().strip()
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"{place}: {path} can't be read as text") from None
    if not secret:
        raise Invalid(f"{place}: {path} is empty")
    return secret


def _check(name: str, tools: list[Document], where: str) -> None:
    try:
        check_tools(name, tools, where)
    except ByreError as error:
        raise Invalid(error.message if error.message.startswith(where) else f"{where}: {error.message}") from None
    for i, tool in enumerate(tools):
        for schema in ("input_schema", "output_schema"):
            try:
                jsonschema.Draft202012Validator.check_schema(tool.get(schema, True))
            except jsonschema.SchemaError:
                raise Invalid(f"{where}[{i}].{schema}: is no JSON schema (2020-12)") from None


def _distinct(entries: list[Entry]) -> None:
    """Raises Invalid if some tenant would see two providers of one name, or two tools."""
    seen: dict[str, list[tuple[int, Entry]]] = {}
    for i, entry in enumerate(entries):
        names = [f"provider {entry.name}", *(f"tool {exposed(entry.name, tool['name'])}" for tool in entry.tools or ())]
        for name in names:
            for j, other in seen.get(name, []):
                if other.tenants is None or entry.tenants is None or other.tenants & entry.tenants:
                    raise Invalid(f"providers[{i}]: providers[{j}] has the {name} too, for the same tenants")
            seen.setdefault(name, []).append((i, entry))


def _place(error: jsonschema.ValidationError) -> str:
    return error.json_path.removeprefix("$").removeprefix(".")


def _what(error: jsonschema.ValidationError) -> str:
    """What is wrong, without the value that is."""
    rule = str(error.validator)
    if rule in _SAYS:
        return _SAYS[rule](error.validator_value)
    if rule in ("required", "additionalProperties"):
        return error.message  # they name fields
    return f"{rule} is {error.validator_value}" if rule != "None" else "isn't allowed here"
