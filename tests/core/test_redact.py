"""Known secrets never pass, in whatever part of a JSON value they stand."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from app.core.redact import MASK, SHORTEST, Redactor

secrets = st.text(min_size=SHORTEST, max_size=40).filter(lambda s: MASK not in s and s not in MASK)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def places(secret: str) -> list[Any]:
    around = f"before {secret} after"
    return [around, {around: 1}, [[around]], {"a": [{"b": around}]}, {"k": {around: around}}, json.dumps({"a": secret})]


@given(secrets)
def test_a_secret_passes_nowhere(secret: str) -> None:
    redactor = Redactor([secret])
    for value in places(secret):
        shown = json.dumps(redactor.value(value), ensure_ascii=False)
        assert secret not in shown
        assert json.dumps(secret)[1:-1] not in shown
        assert MASK in shown


@given(values)
def test_what_holds_no_secret_stays_as_it_is(value: Any) -> None:
    assert Redactor(["a secret of nobody"]).value(value) == value
    assert Redactor().value(value) is value


def test_longer_secrets_first_and_short_ones_not_at_all() -> None:
    redactor = Redactor(["password", "password-and-more", "short", ""])
    assert redactor.text("password-and-more password short") == f"{MASK} {MASK} short"


def test_special_characters_are_no_patterns() -> None:
    assert Redactor(["a.c*(e]^g$"]).text("abcccccegxx a.c*(e]^g$") == f"abcccccegxx {MASK}"


def test_an_end_that_may_become_a_secret_is_held_back() -> None:
    redactor = Redactor(["secret-one", 'with "quotes"'])
    assert [redactor.held(text) for text in ("", "x", "a secr", "a secret-one", "secret-on", "s", 'with \\"q')] == [
        0,
        0,
        4,
        0,
        9,
        1,
        8,
    ]
    assert Redactor().held("secret") == 0
