"""Five hundred followers of one session on one API process, and what REST calls take meanwhile."""

from __future__ import annotations

import pytest

from tests.support.dev import running
from tests.support.followers import measure

pytestmark = pytest.mark.bench


def test_five_hundred_followers_of_two_thousand_events() -> None:
    with running() as stack:
        figures = measure(stack, followers=500, events=2000, rate=25)
    print("\n" + ", ".join(f"{name} {value:g}" for name, value in figures._asdict().items()))
    assert (figures.complete, figures.wrong) == (500, 0)
    assert figures.kib_each_at_most < 40
    assert figures.rest_p95 < 100
