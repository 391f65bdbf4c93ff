"""The reference page: both documents as one page of HTML for people.

Rules: everything on the page comes from the documents, nothing is written here a second time; prose is Markdown without raw
HTML, the rest is escaped by the template. A view is made first (plain records), then rendered: the template decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jinja2
import orjson
from markdown_it import MarkdownIt
from markupsafe import Markup

from app.http.schema_documents import METHODS, NO_NUL, Api, Documents, Json, resolve

_TEMPLATES = Path(__file__).resolve().parent / "templates"
_HERE = "#/components/schemas/"
_HIDDEN = ("EventData_", "EventPayload_")
_MARKDOWN = MarkdownIt("commonmark", {"html": False})
_BOUNDS = (("minimum", "at least {}"), ("maximum", "at most {}"), ("minLength", "{} or more characters"),
           ("maxLength", "up to {} characters"), ("minItems", "{} or more items"), ("maxItems", "up to {} items"),
           ("default", "default {}"))  # fmt: skip


class Part(NamedTuple):
    """A piece of a type: text, and the place on the page that it leads to."""

    text: str
    href: str = ""


class Field(NamedTuple):
    """A row of a table: a property of an object or a parameter. `bounds` are rules in words."""

    name: str
    kind: list[Part]
    required: bool
    text: Markup
    bounds: list[str]


class Shape(NamedTuple):
    """A schema with a name: a component or an event type."""

    anchor: str
    name: str
    text: Markup
    kind: list[Part]
    fields: list[Field]
    example: str


class Answer(NamedTuple):
    """A response of an operation when it does what was asked."""

    status: str
    text: Markup
    content: list[tuple[str, list[Part]]]


class Operation(NamedTuple):
    """An operation with all that one needs to call it."""

    anchor: str
    id: str
    method: str
    path: str
    summary: str
    text: Markup
    fields: list[tuple[str, Field]]
    body: list[tuple[str, list[Part]]]
    examples: list[tuple[str, str]]
    answers: list[Answer]
    refusals: list[str]


class Section(NamedTuple):
    """Operations that belong together."""

    anchor: str
    name: str
    text: Markup
    operations: list[Operation]


class Contract(NamedTuple):
    """One document."""

    api: Api
    title: str
    summary: str
    text: Markup
    errors: Markup
    error: list[Part]
    href: str
    sections: list[Section]
    events: list[Shape]
    schemas: list[Shape]


def render(documents: Documents) -> str:
    """The page as HTML."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    contracts = [contract(documents, "brain"), contract(documents, "byre")]
    return environment.get_template("reference.html").render(contracts=contracts)


def contract(documents: Documents, api: Api) -> Contract:
    """The view of one document."""
    document = documents.of(api)
    info = document["info"]
    view = _View(api, document)
    components = document["components"]["schemas"]
    refused = document["components"]["responses"]["Error"]
    return Contract(
        api=api,
        title=info["title"],
        summary=info["summary"],
        text=block(info["description"]),
        errors=block(refused["description"]),
        error=view.kind(refused["content"]["application/json"]["schema"]),
        href=f"/openapi/{api}.json",
        sections=list(view.sections()),
        events=[view.shape(f"{api}-event-{kind}", kind, schema) for kind, schema in documents.event_schemas(api).items()],
        schemas=[
            view.shape(f"{api}-{name}", name, schema) for name, schema in components.items() if not name.startswith(_HIDDEN)
        ],
    )


def block(text: str) -> Markup:
    """Markdown as paragraphs and lists."""
    return Markup(_MARKDOWN.render(text))  # noqa: S704 - raw HTML is off, so all of it is escaped


class _View:
    """Turns nodes of one document into records."""

    def __init__(self, api: Api, document: Json) -> None:
        self._api = api
        self._document = document

    def sections(self) -> Iterator[Section]:
        operations: dict[str, list[Operation]] = {}
        for path, item in self._document["paths"].items():
            for method in METHODS:
                if method in item:
                    shared = item.get("parameters", [])
                    operations.setdefault(item[method]["tags"][0], []).append(
                        self._operation(path, method, item[method], shared)
                    )
        for tag in self._document["tags"]:
            name = tag["name"]
            yield Section(f"{self._api}-tag-{name.lower()}", name, block(tag["description"]), operations.get(name, []))

    def _operation(self, path: str, method: str, node: Json, shared: list[Json]) -> Operation:
        body = node.get("requestBody", {}).get("content", {})
        parameters = [resolve(self._document, p) for p in (*shared, *node.get("parameters", []))]
        return Operation(
            anchor=f"{self._api}-op-{node['operationId']}",
            id=node["operationId"],
            method=method.upper(),
            path=path,
            summary=node["summary"],
            text=block(node["description"]),
            fields=[
                (p["in"], self._field(p["name"], p["schema"], p.get("required", False), p["description"])) for p in parameters
            ],
            body=[(kind, self.kind(media["schema"])) for kind, media in body.items()],
            examples=[
                (e["summary"], _pretty(e["value"])) for media in body.values() for e in media.get("examples", {}).values()
            ],
            answers=[
                self._answer(status, response) for status, response in node["responses"].items() if "$ref" not in response
            ],
            refusals=["others" if status == "default" else status for status, r in node["responses"].items() if "$ref" in r],
        )

    def _answer(self, status: str, node: Json) -> Answer:
        content = [(kind, self.kind(media["schema"])) for kind, media in node.get("content", {}).items()]
        return Answer(status, block(node["description"]), content)

    def shape(self, anchor: str, name: str, schema: Json) -> Shape:
        """The record of a named schema."""
        examples = schema.get("examples") or ([schema["x-example"]] if "x-example" in schema else [])
        return Shape(
            anchor=anchor,
            name=name,
            text=block(schema.get("description", "")),
            kind=self.kind({k: v for k, v in schema.items() if k != "properties"}),
            fields=list(self._fields(schema, "")),
            example=_pretty(examples[0]) if examples else "",
        )

    def _fields(self, schema: Json, prefix: str) -> Iterator[Field]:
        """Rows of an object; those of objects that are written out inside follow under a longer name."""
        for name, inner in schema.get("properties", {}).items():
            yield self._field(prefix + name, inner, name in schema.get("required", ()), inner.get("description", ""))
            items = inner.get("items", {})
            yield from self._fields(inner, f"{prefix}{name}.")
            yield from self._fields(items, f"{prefix}{name}[].")

    def _field(self, name: str, schema: Json, required: bool, text: str) -> Field:
        if not text and "$ref" in schema:
            text = resolve(self._document, schema).get("description", "")
        return Field(name, self.kind(schema), required, block(text), list(_bounds(schema)))

    def kind(self, schema: Json) -> list[Part]:
        """The type of a value in words, with links."""
        if "$ref" in schema:
            name = schema["$ref"].removeprefix(_HERE)
            return [Part(name, f"#{self._api}-{name}")]
        if "enum" in schema:
            return _joined([Part(_plain(v)) for v in schema["enum"]], " | ")
        for word in ("oneOf", "anyOf"):
            forms = schema.get(word, [])
            if forms and all(form.keys() & {"$ref", "type", "enum", "pattern"} for form in forms):
                return [part for n, form in enumerate(forms) for part in ([Part(" or ")] if n else []) + self.kind(form)]
        if schema.get("type") == "array":
            return [Part("array of "), *self.kind(schema["items"])]
        extra = schema.get("additionalProperties")
        if isinstance(extra, dict):
            return [Part("map of "), *self.kind(extra)]
        if "type" not in schema and "pattern" in schema:
            return [Part("another name")]
        form = f" ({schema['format']})" if "format" in schema else ""
        return [Part(schema.get("type", "any JSON") + form)]


def _bounds(schema: Json) -> Iterator[str]:
    for word, text in _BOUNDS:
        if word in schema:
            yield text.format(_plain(schema[word]))
    if "pattern" in schema:
        yield "no NUL character" if schema["pattern"] == NO_NUL else f"matches {schema['pattern']}"
    if schema.get("writeOnly"):
        yield "never shown again"


def _joined(parts: Iterable[Part], by: str) -> list[Part]:
    out: list[Part] = []
    for part in parts:
        out += [Part(by), part] if out else [part]
    return out


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _pretty(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
