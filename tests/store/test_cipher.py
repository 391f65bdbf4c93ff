"""What is encrypted comes back only to whom it belongs, where it belongs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.store.cipher import OVERHEAD, Cipher, Undecryptable


@given(st.binary(max_size=1000), st.binary(max_size=50))
def test_there_and_back(plain: bytes, context: bytes) -> None:
    cipher = Cipher("secret")
    sealed = cipher.encrypt(plain, context)
    assert cipher.decrypt(sealed, context) == plain
    assert len(sealed) == len(plain) + OVERHEAD
    assert len(plain) < 8 or plain not in sealed
    assert cipher.encrypt(plain, context) != sealed


@pytest.mark.parametrize("other", [Cipher("other"), Cipher("secret", purpose="credentials")])
def test_another_secret_or_purpose_does_not_decrypt(other: Cipher) -> None:
    with pytest.raises(Undecryptable, match="secret key"):
        other.decrypt(Cipher("secret").encrypt(b"text", b"here"), b"here")


def test_it_can_not_be_moved() -> None:
    cipher = Cipher("secret")
    with pytest.raises(Undecryptable):
        cipher.decrypt(cipher.encrypt(b"text", b"here"), b"there")


def test_any_flipped_bit_and_any_cut_is_noticed() -> None:
    cipher = Cipher("secret")
    sealed = cipher.encrypt(b"text", b"here")
    for at in range(len(sealed)):
        damaged = bytearray(sealed)
        damaged[at] ^= 1
        with pytest.raises(Undecryptable):
            cipher.decrypt(bytes(damaged), b"here")
        with pytest.raises(Undecryptable):
            cipher.decrypt(sealed[:at], b"here")


def test_the_secret_can_be_changed() -> None:
    old, both, new = Cipher("old"), Cipher("new", previous=["older", "old"]), Cipher("new")
    assert both.decrypt(old.encrypt(b"text", b"c"), b"c") == b"text"
    assert new.decrypt(both.encrypt(b"text", b"c"), b"c") == b"text"
    with pytest.raises(Undecryptable):
        new.decrypt(old.encrypt(b"text", b"c"), b"c")


@pytest.mark.parametrize(("secret", "previous"), [("", []), ("new", [""])])
def test_an_empty_secret_is_none(secret: str, previous: list[str]) -> None:
    with pytest.raises(ValueError, match="empty"):
        Cipher(secret, previous=previous)
