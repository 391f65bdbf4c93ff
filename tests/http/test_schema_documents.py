"""The documents themselves: whole, well formed, described throughout, and at one with the code."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from app.core import errors
from app.core.session import STATEFUL
from app.http.operations import OPERATIONS
from app.http.schema_documents import METHODS, Documents, load, resolve

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
FILES = sorted(SCHEMAS.glob("*.json"))
APIS = ("brain", "byre")


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield f"{method} {path}", item[method]


def undescribed(node: dict[str, Any], place: str) -> Iterator[str]:
    """Places below a schema that have no description, neither of their own nor by what they refer to."""
    if not node.get("description", "").strip() and "$ref" not in node:
        yield place
    for name, inner in node.get("properties", {}).items():
        yield from undescribed(inner, f"{place}.{name}")
    if "properties" in node.get("items", {}):
        for name, inner in node["items"]["properties"].items():
            yield from undescribed(inner, f"{place}[].{name}")


def examples(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any], Any]]:
    """Every JSON example of a document with the schema that it is an example of."""
    for name, operation in operations(document):
        media = [operation.get("requestBody", {})] + [resolve(document, r) for r in operation["responses"].values()]
        for holder in media:
            content = holder.get("content", {}).get("application/json")
            if content is None:
                continue
            if "example" in content:
                yield name, content["schema"], content["example"]
            for key, example in content.get("examples", {}).items():
                yield f"{name} {key}", content["schema"], example["value"]
    for name, schema in document["components"]["schemas"].items():
        for example in [*schema.get("examples", []), *([schema["x-example"]] if "x-example" in schema else [])]:
            yield name, schema, example
        for key, inner in schema.get("properties", {}).items():
            for example in inner.get("examples", []):
                yield f"{name}.{key}", inner, example


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_files_are_written_in_one_way(path: Path) -> None:
    text = path.read_text()
    assert text == json.dumps(json.loads(text), indent=2, ensure_ascii=False) + "\n"


@pytest.mark.parametrize("api", APIS)
def test_documents_are_openapi(api: str) -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="openapi-spec-validator isn't installed")
    validator.validate(load().of(api))  # type: ignore[arg-type]


@pytest.mark.parametrize("api", APIS)
def test_every_schema_is_a_schema(api: str) -> None:
    for schema in load().of(api)["components"]["schemas"].values():  # type: ignore[arg-type]
        jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("api", APIS)
def test_everything_is_described(api: str) -> None:
    document = load().of(api)  # type: ignore[arg-type]
    missing = [tag["name"] for tag in document["tags"] if not tag.get("description")]
    for name, operation in operations(document):
        missing += [f"{name} {word}" for word in ("summary", "description") if not operation.get(word, "").strip()]
        parts = [resolve(document, p) for p in operation.get("parameters", [])] + [
            resolve(document, r) for r in operation["responses"].values()
        ]
        parts += [operation["requestBody"]] if "requestBody" in operation else []
        missing += [f"{name} {part.get('name', 'part')}" for part in parts if not part.get("description", "").strip()]
        assert operation["tags"] and operation["tags"][0] in [tag["name"] for tag in document["tags"]], name
    for kind in ("parameters", "headers", "responses", "securitySchemes"):
        missing += [n for n, node in document["components"][kind].items() if not node.get("description", "").strip()]
    for name, schema in document["components"]["schemas"].items():
        missing += undescribed(schema, name)
    assert missing == []


@pytest.mark.parametrize(("api", "shape"), [("brain", "ErrorResponse"), ("byre", "Error")])
def test_every_operation_says_how_it_refuses(api: str, shape: str) -> None:
    document = load().of(api)  # type: ignore[arg-type]
    for name, operation in operations(document):
        for status, node in operation["responses"].items():
            if status == "default" or status >= "400":
                response = resolve(document, node)
                assert response["content"]["application/json"]["schema"]["$ref"].endswith("/" + shape), (name, status)
                assert {"X-Request-ID", "Retry-After"} <= response["headers"].keys()
        assert "default" in operation["responses"], name
        assert any(status < "400" for status in operation["responses"] if status != "default"), name


@pytest.mark.parametrize("api", APIS)
def test_examples_fit_their_schemas(api: str) -> None:
    documents = load()
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    found = list(examples(documents.of(api)))  # type: ignore[arg-type]
    assert len(found) > 20
    for name, schema, example in found:
        whole = documents.whole(api, schema)  # type: ignore[arg-type]
        problems = [e.message for e in jsonschema.Draft202012Validator(whole, format_checker=checker).iter_errors(example)]
        assert problems == [], name


def test_operations_are_those_that_are_served() -> None:
    described = {o.id: (o.method, o.path) for o in load().operations.values()}
    assert described == {o.id: (o.method, o.path) for o in OPERATIONS.values()}
    assert len(described) == 53
    for operation in OPERATIONS.values():
        assert str(operation.status) in load().operations[operation.id].responses, operation.id
        takes_json = "application/json" in load().operations[operation.id].content
        assert takes_json == operation.body, operation.id


def test_error_codes_are_those_that_are_raised() -> None:
    raised = {kind.code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ByreError)}
    assert raised == set(load().brain["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["enum"])


def test_vendors_and_kinds_are_open_and_codes_of_bodies_are_not() -> None:
    documents = load()
    vendor = documents.byre["components"]["schemas"]["AgentSession"]["properties"]["vendor"]
    check = jsonschema.Draft202012Validator(vendor)
    assert all(check.is_valid(name) for name in ("claude", "script", "codex", "claude-agent-acp"))
    assert not check.is_valid("") and not check.is_valid(5)
    delivery = documents.brain["components"]["schemas"]["Input"]["properties"]["delivery"]
    assert "enum" not in delivery, "an unknown delivery is 422, which only the service can say"


def test_every_event_of_a_turn_names_it() -> None:
    schemas = load().event_schemas("brain")
    for kind, schema in schemas.items():
        if kind.startswith(("turn.", "assistant.", "tool.")) or kind == "rate_limited":
            assert "turn" in schema["required"], kind


def test_every_event_that_changes_a_session_is_described() -> None:
    assert STATEFUL | {
        "assistant.delta",
        "assistant.message",
        "assistant.thinking",
        "tool.call",
        "tool.progress",
        "tool.result",
    } == set(load().event_schemas("brain"))


def test_documents_are_found_wherever_they_lie(tmp_path: Path) -> None:
    for path in FILES:
        shutil.copy(path, tmp_path)
    found: Documents = load(tmp_path)
    assert found.operations.keys() == load().operations.keys()
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "nowhere")


def test_a_reference_into_nothing_stops_the_start(tmp_path: Path) -> None:
    for path in FILES:
        text = path.read_text().replace("#/components/responses/Error", "#/components/responses/Gone")
        (tmp_path / path.name).write_text(text)
    with pytest.raises(ValueError, match="Gone leads nowhere"):
        load(tmp_path)


def test_the_documents_are_whole_by_themselves() -> None:
    for api in APIS:
        text = json.dumps(load().of(api))  # type: ignore[arg-type]
        assert ".openapi.json#" not in text and "#/$defs/" not in text
