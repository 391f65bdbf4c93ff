"""Frames of server-sent events: what a client reads is what was meant, and no value can forge a field."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import sse


def parse(stream: bytes) -> list[dict[str, str]]:
    """Events as the algorithm of WHATWG HTML 9.2.6 finds them, with the retry time as an event of its own."""
    events: list[dict[str, str]] = []
    current: dict[str, str] = {}
    for line in stream.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        if not line:
            if current:
                events.append(current)
            current = {}
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and "data" in current:
            value = current["data"] + "\n" + value
        if name:
            current[name] = value
    return events


def test_a_frame_has_id_type_and_data() -> None:
    assert sse.frame(b'{"a":1}', event="tool.call", id="c-1") == b'id: c-1\nevent: tool.call\ndata: {"a":1}\n\n'


def test_a_frame_without_id_leaves_the_clients_last_id_alone() -> None:
    assert b"id" not in sse.frame(b"x", event="assistant.delta")


def test_comment_and_retry_are_no_events() -> None:
    assert sse.comment("hb") == b": hb\n\n"
    assert sse.retry(2000) == b"retry: 2000\n\n"
    assert parse(sse.comment("hb")) == []


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b", "\n"])
def test_a_field_can_not_hold_a_line_break(bad: str) -> None:
    for make in (lambda: sse.frame(b"", id=bad), lambda: sse.frame(b"", event=bad), lambda: sse.comment(bad)):
        with pytest.raises(ValueError, match="line break"):
            make()


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), max_size=8))
def test_joined_frames_come_out_one_by_one(texts: list[str]) -> None:
    stream = b"".join(sse.frame(text.encode(), event="e", id=str(n)) for n, text in enumerate(texts))
    expected = [text.replace("\r\n", "\n").replace("\r", "\n") for text in texts]
    assert [(event["id"], event["data"]) for event in parse(stream)] == [(str(n), text) for n, text in enumerate(expected)]
