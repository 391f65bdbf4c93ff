"""Every event that a test sees, held against the schema of its type."""

from __future__ import annotations

import functools
from typing import Any

import jsonschema

from app.http.schema import load


@functools.cache
def _schema(kind: str) -> jsonschema.Draft202012Validator:
    documents = load()
    schemas = documents.event_schemas("brain")
    assert kind in schemas, f"an event of type {kind!r}, which schemas/events.brain.json lacks"
    return jsonschema.Draft202012Validator(documents.whole("brain", schemas[kind]))


@functools.cache
def _envelope() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(load().whole("brain", {"$ref": "#/components/schemas/Event"}))


def check(event: dict[str, Any]) -> None:
    """Fails if `event` isn't one, or its data isn't what its type's schema says."""
    _envelope().validate(event)
    _schema(event["type"]).validate(event["data"])
    assert ("cursor" in event) == (event["type"] != "assistant.delta")
