"""Segments: what was written is what is read, and any byte that changed is found."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.errors import Corrupt
from app.log import segment
from app.log.segment import Fence, Segment, decode, encode, encode_fence, unmark

KEY = "tenants/t/sessions/s/log/00000000/0000000000000003"
lines = st.lists(st.binary(max_size=60).filter(lambda b: b"\n" not in b), min_size=1, max_size=8)


def made(content: list[bytes], **more: Any) -> Segment:
    return Segment(
        gen=2,
        first=3,
        lines=content,
        prev="0" * 64,
        state={"status": "idle"},
        put_id="put",
        total=sum(map(len, content)),
        **more,
    )


@given(lines)
def test_round_trip(content: list[bytes]) -> None:
    written = made(content)
    body, digest = encode(written)
    read = decode(KEY, body)
    assert isinstance(read, Segment)
    assert read == made(content, sha256=digest)
    assert read.end == 3 + len(content)
    assert unmark(read.mark) == (digest, written.total)


def test_every_flipped_bit_of_every_byte_is_corrupt_and_named() -> None:
    body, _ = encode(made([b'{"type":"user.message","id":"' + b"a" * 32 + b'"}', b"{}"]))
    for at in range(len(body)):
        for bit in range(8):
            broken = bytearray(body)
            broken[at] ^= 1 << bit
            with pytest.raises(Corrupt) as caught:
                decode(KEY, bytes(broken))
            assert caught.value.key == KEY


def test_every_truncation_and_every_addition_is_corrupt() -> None:
    body, _ = encode(made([b"first", b"second"]))
    for cut in [*(body[:at] for at in range(len(body))), body + b"\0", body + b"\n", body + body, b"\n" + body]:
        with pytest.raises(Corrupt):
            decode(KEY, cut)


@given(st.binary(max_size=300))
def test_rubbish_is_corrupt(body: bytes) -> None:
    with pytest.raises(Corrupt):
        decode(KEY, body)


def test_fences() -> None:
    assert decode(KEY, encode_fence("mine")) == Fence("mine")


def test_a_broken_fence_is_never_another_fence_or_a_segment() -> None:
    body = encode_fence("0123456789abcdef")
    for at in range(len(body)):
        for bit in range(8):
            broken = bytearray(body)
            broken[at] ^= 1 << bit
            try:
                assert isinstance(decode(KEY, bytes(broken)), Fence), "a fence stays one whoever it says that made it"
            except Corrupt:
                continue


@settings(max_examples=20)
@given(lines)
def test_a_frame_that_is_too_large_is_refused_before_it_is_unpacked(content: list[bytes]) -> None:
    body, _ = encode(made([*content, b"x" * 4096]))
    limit, segment.MAX_PLAIN_BYTES = segment.MAX_PLAIN_BYTES, 1024
    try:
        with pytest.raises(Corrupt):
            decode(KEY, body)
    finally:
        segment.MAX_PLAIN_BYTES = limit


def test_unmark_of_nothing() -> None:
    assert unmark("") == ("", 0)
