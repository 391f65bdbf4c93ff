"""Our OpenAPI documents, found and read: what each operation of both contracts takes and answers.

Rules: `schemas/` is the only source. It lies beside the package `app`: in a checkout, in an editable installation and in an
image. The events of each document are kept in a file of their own and become part of the document when it is read
(`EventData_*` and `EventPayload_*` among its components, listed by `x-event-types` and `x-event-kinds`), so that what is
served is whole. Nothing here is changed after loading.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson

Api = Literal["brain", "byre"]
Json = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NO_NUL = "^[^\\u0000]*$"
"""The pattern of text that reaches command lines and file names, which can't hold a NUL."""

METHODS = ("get", "put", "post", "delete", "patch")
_HERE = "#/components/schemas/"
_EVENTS: dict[Api, tuple[str, str]] = {"brain": ("EventData_", "x-event-types"), "byre": ("EventPayload_", "x-event-kinds")}


@dataclass(frozen=True, slots=True)
class Described:
    """One operation as its document has it, references to parameters and responses resolved.

    `content` maps the content types of the body to their schemas (empty: no body); `responses` maps status or `default` to
    the response.
    """

    id: str
    api: Api
    method: str
    path: str
    parameters: tuple[Json, ...]
    content: Mapping[str, Json]
    body_required: bool
    responses: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Documents:
    """Both documents as they are served, and their operations by operationId."""

    brain: Json
    byre: Json
    operations: Mapping[str, Described]

    def of(self, api: Api) -> Json:
        """The document of one contract."""
        return self.brain if api == "brain" else self.byre

    def whole(self, api: Api, fragment: Json) -> Json:
        """`fragment` of a document as a schema of its own: what it refers to comes with it."""
        return {"$schema": DIALECT, **fragment, "components": {"schemas": self.of(api)["components"]["schemas"]}}

    def event_schemas(self, api: Api) -> dict[str, Json]:
        """The component of each event type (Brain) or kind (byre)."""
        document = self.of(api)
        listed: dict[str, Json] = document[_EVENTS[api][1]]
        return {kind: resolve(document, reference) for kind, reference in listed.items()}


@functools.cache
def load(directory: Path | None = None) -> Documents:
    """Reads the documents from `directory` (default: `schemas/` beside the package). Raises FileNotFoundError, or ValueError
    if they contradict each other: an operationId that occurs twice, a reference that leads nowhere.
    """
    place = directory or Path(__file__).resolve().parents[2] / "schemas"
    brain, byre = _read(place / "brain.openapi.json"), _read(place / "byre.openapi.json")
    _embed("brain", brain, _read(place / "events.brain.json"), brain)
    _embed("byre", byre, _read(place / "events.byre.json"), brain)
    operations: dict[str, Described] = {}
    for operation in (*_operations("brain", brain), *_operations("byre", byre)):
        if operation.id in operations:
            raise ValueError(f"operationId {operation.id} occurs twice")
        operations[operation.id] = operation
    return Documents(brain, byre, operations)


def resolve(document: Json, node: Json) -> Json:
    """`node`, or what it refers to within `document`. Raises ValueError if that isn't there."""
    for _ in range(16):
        reference = node.get("$ref")
        if reference is None:
            return node
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target.get(part) if isinstance(target, dict) else None
        if not reference.startswith("#/") or not isinstance(target, dict):
            raise ValueError(f"{reference} leads nowhere")
        node = target
    raise ValueError("references go in a circle")


def references(node: Any) -> Iterator[str]:
    """Every `$ref` below `node`."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def _read(path: Path) -> Json:
    document: Json = orjson.loads(path.read_bytes())
    return document


def _operations(api: Api, document: Json) -> Iterator[Described]:
    for reference in references(document):
        resolve(document, {"$ref": reference})
    for path, item in document["paths"].items():
        shared = item.get("parameters", [])
        for method in METHODS:
            if method not in item:
                continue
            operation = item[method]
            body = operation.get("requestBody", {})
            yield Described(
                id=operation["operationId"],
                api=api,
                method=method.upper(),
                path=path,
                parameters=tuple(resolve(document, p) for p in (*shared, *operation.get("parameters", []))),
                content={kind: media["schema"] for kind, media in body.get("content", {}).items()},
                body_required=body.get("required", False),
                responses={status: resolve(document, r) for status, r in operation["responses"].items()},
            )


def _embed(api: Api, document: Json, events: Json, brain: Json) -> None:
    """Puts the event schemas among the components, with references made to fit their new place.

    In the byre document, what they use of Brain's components is copied along under `Brain_*`.
    """
    prefix, listing = _EVENTS[api]
    components: Json = document["components"]["schemas"]
    foreign = _HERE if api == "brain" else _HERE + "Brain_"
    own = {"#/$defs/": f"{_HERE}EventPart_", "brain.openapi.json" + _HERE: foreign, "byre.openapi.json" + _HERE: _HERE}
    for name, schema in events["$defs"].items():
        components[f"EventPart_{name}"] = _moved(schema, own)
    document[listing] = {}
    for kind, schema in events["events"].items():
        name = prefix + kind.replace(".", "_")
        components[name] = _moved(schema, own)
        document[listing][kind] = {"$ref": _HERE + name}
    if api == "byre":
        waiting = [r.removeprefix(foreign) for r in references(components) if r.startswith(foreign)]
        while waiting:
            name = waiting.pop()
            if "Brain_" + name not in components:
                copied = _moved(brain["components"]["schemas"][name], {_HERE: foreign})
                components["Brain_" + name] = copied
                waiting += [r.removeprefix(foreign) for r in references(copied)]


def _moved(node: Any, places: Mapping[str, str]) -> Any:
    if isinstance(node, list):
        return [_moved(value, places) for value in node]
    if not isinstance(node, dict):
        return node
    out = {key: _moved(value, places) for key, value in node.items()}
    reference = out.get("$ref")
    if isinstance(reference, str):
        for old, new in places.items():
            if reference.startswith(old):
                out["$ref"] = new + reference.removeprefix(old)
                break
    return out
