"""The quick validator decides and the thorough one explains: both must say the same of every body."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import jsonschema_rs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.core.errors import ByreError, Invalid
from app.http.schema import Validator
from app.http.schema_body import decode
from app.http.schema_documents import load

DOCUMENTS = load()
VALIDATOR = Validator(DOCUMENTS)
# The same cases each time: a build must not fail by chance.
SETTINGS = settings(deadline=None, max_examples=60, derandomize=True, suppress_health_check=list(HealthCheck))
BODIES = [o for o in DOCUMENTS.operations.values() if "application/json" in o.content]
PAIRS = {
    o.id: (
        jsonschema_rs.validator_for(DOCUMENTS.whole(o.api, o.content["application/json"])),
        jsonschema.Draft202012Validator(DOCUMENTS.whole(o.api, o.content["application/json"])),
    )
    for o in BODIES
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
)
odd = st.sampled_from(["", "\0", "\n", "user.message", "x" * 300, "ü" * 1001, 1.0, -0.0, 10**18, [], {}, [[]], {"": None}])
values = st.recursive(
    scalars | odd, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)
names = st.sampled_from(
    ["type", "text", "key", "config", "tools", "name", "result", "progress", "content", "options", "x", "", "ü"]
)


def examples(operation: str) -> list[Any]:
    described = DOCUMENTS.operations[operation]
    node = DOCUMENTS.of(described.api)["paths"][described.path][described.method.lower()]
    return [e["value"] for e in node["requestBody"]["content"]["application/json"]["examples"].values()]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) in `value`."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@st.composite
def mutated(draw: st.DrawFn, operation: str) -> Any:
    """A documented example with a few things changed, added, taken away or multiplied."""
    value = copy.deepcopy(draw(st.sampled_from(examples(operation))))
    changes = ["replace", "remove", "add", "whole", "many"]
    for _ in range(draw(st.integers(0, 3))):
        spots = list(places(value))
        if not spots:
            return draw(values)
        holder, key = spots[draw(st.integers(0, len(spots) - 1))]
        match draw(st.sampled_from(changes)):
            case "replace":
                holder[key] = copy.deepcopy(draw(values))
            case "remove":
                del holder[key]
            case "add" if isinstance(holder, dict):
                holder[draw(names)] = copy.deepcopy(draw(values))
            case "many":
                holder[key] = [draw(scalars)] * draw(st.sampled_from([1, 2, 101, 501, 1001]))
                changes.remove("many")
            case "whole" if draw(st.integers(0, 9)) == 0:
                return draw(values)
            case _:
                pass
    return value


@pytest.mark.parametrize("operation", [o.id for o in BODIES])
def test_both_validators_agree_and_the_refusal_is_a_clear_one(operation: str) -> None:
    quick, thorough = PAIRS[operation]

    @SETTINGS
    @given(mutated(operation))
    def check(value: Any) -> None:
        value = orjson.loads(orjson.dumps(value)) if _fits(value) else None
        verdict = thorough.is_valid(value)
        assert quick.is_valid(value) == verdict
        try:
            VALIDATOR.check_body(operation, orjson.dumps(value))
        except Invalid as error:
            assert not verdict
            assert len(error.message) < 600 and ": " in error.message
        else:
            assert verdict

    check()


def _fits(value: Any) -> bool:
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return False
    return True


@SETTINGS
@given(st.binary(max_size=60) | st.text(alphabet='{}[]":,\\ab1 .eE-+nultrsf', max_size=60).map(str.encode))
def test_bytes_are_decoded_or_refused(raw: bytes) -> None:
    try:
        value = decode(raw).value
    except ByreError:
        return
    assert orjson.loads(raw) == value
    orjson.dumps(value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("twice")
    return dict(pairs)


@SETTINGS
@given(
    st.lists(
        st.tuples(
            st.sampled_from(['"a"', '"\\u0061"', '"b:"', '"\\":"', '"\\\\"']),
            st.sampled_from(['":"', "1", '{"a":2}', '["a:","b"]']),
        )
    )
)
def test_a_name_given_twice_is_found(members: list[tuple[str, str]]) -> None:
    raw = "{" + ",".join(f"{name} : {value}" for name, value in members) + "}"
    try:
        json.loads(raw, object_pairs_hook=_unique)
    except ValueError:
        with pytest.raises(Invalid, match="twice"):
            decode(raw.encode())
    else:
        assert decode(raw.encode()).value == json.loads(raw)
