"""A hundred followers of one session; `make bench` has five hundred."""

from __future__ import annotations

from tests.support.dev import running
from tests.support.followers import measure


def test_all_followers_see_all_events_in_order() -> None:
    with running() as stack:
        figures = measure(stack, followers=100, events=300, rate=100)
    assert (figures.complete, figures.wrong) == (100, 0), figures
    assert figures.kib_each < 60, figures  # with few followers what a first stream costs weighs more
    assert figures.rest_p50 < 500, figures  # the machine may be busy with other tests
