"""The diagram in docs/lifecycle.md is the table in app/core/session.py."""

from __future__ import annotations

from app.core.session import TRANSITIONS, Status
from tests.support import lifecycle


def test_the_diagram_is_current() -> None:
    assert lifecycle.shown(lifecycle.PAGE.read_text()) == lifecycle.diagram(), "run: python -m tests.support.lifecycle"


def test_the_diagram_shows_every_row_of_the_table() -> None:
    drawn = lifecycle.diagram()
    for status in Status:
        assert f" {status}" in drawn
    for _, row in TRANSITIONS:
        assert row.partition(":")[0] in drawn
