"""Cursors: what was encoded comes back, and nothing else is taken for a cursor of this session."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.cursor import START, Foreign, Position, Undecodable, decode, encode

SESSION = "0198f2c4b2a07f108000000000000001"
OTHER = "0198f2c4b2a07f108000000000000002"
positions = st.builds(Position, st.integers(0, 2**40), st.integers(-1, 2**62))
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@given(positions)
def test_a_cursor_comes_back_as_it_was(position: Position) -> None:
    text = encode(SESSION, position)
    assert decode(SESSION, text) == position
    assert set(text) <= set(ALPHABET), "it must stand in a URL and in a header as it is"


@given(positions)
def test_another_sessions_cursor_is_foreign_and_not_garbage(position: Position) -> None:
    with pytest.raises(Foreign):
        decode(OTHER, encode(SESSION, position))


@given(positions, st.data())
def test_a_typo_is_never_another_place(position: Position, data: st.DataObject) -> None:
    text = encode(SESSION, position)
    at = data.draw(st.integers(0, len(text) - 1))
    wrong = text[:at] + data.draw(st.sampled_from(ALPHABET.replace(text[at], ""))) + text[at + 1 :]
    try:
        assert decode(SESSION, wrong) == position, "only the unused bits of the last character may differ"
        assert at == len(text) - 1
    except Undecodable:
        return


@given(st.text(max_size=80))
def test_text_that_is_no_cursor_is_refused(text: str) -> None:
    with pytest.raises((Undecodable, Foreign)):
        decode(SESSION, text)


@pytest.mark.parametrize("text", ["", "a", "a" * 9, "a" * 65, "!!!!!!!!!!!!", "aaaaaaaaaaaa\n", "=" * 12, "ä" * 12])
def test_shapes_that_are_refused(text: str) -> None:
    with pytest.raises(Undecodable):
        decode(SESSION, text)


def test_a_number_that_never_ends_is_refused() -> None:
    import binascii

    body = base64.urlsafe_b64decode(encode(SESSION, START) + "==")[:4] + b"\x80\x80\x80"
    check = binascii.crc_hqx(body, 0xFFFF).to_bytes(2, "big")
    with pytest.raises(Undecodable):
        decode(SESSION, base64.urlsafe_b64encode(body + check).rstrip(b"=").decode())


def test_cursors_are_short() -> None:
    assert len(encode(SESSION, Position(0, 100_000))) <= 16
