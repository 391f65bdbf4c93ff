"""`docs/events.md` and `docs/errors.md` say what the documents say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from app.http.schema_documents import load

DOCS = Path(__file__).resolve().parents[2] / "docs"


def fields(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        yield prefix + name + ("" if name in schema.get("required", ()) else " (optional)")
        yield from fields(inner.get("items", {}), f"{prefix}{name}[].")


def documented(text: str) -> dict[str, list[str]]:
    """Heading -> fields in the table below it."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        heading = re.match(r"`([^`]+)`\n", part)
        assert heading, part[:40]
        body = part.split("\n## ")[0]
        found[heading[1]] = [
            name + optional for name, optional in re.findall(r"^\| `([^`]+)`( \(optional\))? \|", body, re.MULTILINE)
        ]
    return found


def test_every_event_is_documented_with_its_fields() -> None:
    text = (DOCS / "events.md").read_text()
    parts = re.split(r"^## ", text, flags=re.MULTILINE)
    for api, title in (("brain", "Brain"), ("byre", "byre")):
        part = next(p for p in parts if p.startswith(title + ":"))
        expected = {kind: list(fields(schema)) for kind, schema in load().event_schemas(api).items()}  # type: ignore[arg-type]
        assert documented("\n## " + part) == expected


def test_every_count_of_usage_is_documented() -> None:
    usage = (DOCS / "events.md").read_text().split("## Usage")[1]
    for name in load().brain["components"]["schemas"]["EventPart_Usage"]["properties"]:
        assert f"| `{name}` |" in usage


def test_every_error_code_is_documented() -> None:
    text = (DOCS / "errors.md").read_text()
    rows = re.findall(r"^\| (\d{3}) \| `(\w+)` \|", text, re.MULTILINE)
    codes = set(load().brain["components"]["schemas"]["ErrorDetail"]["properties"]["code"]["enum"])
    assert {code for _, code in rows} == codes
    told = load().brain["components"]["responses"]["Error"]["description"]
    assert {status for status, _ in rows} == set(re.findall(r"\b[45]\d\d\b", told))
