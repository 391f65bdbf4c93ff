"""What a runner waits on: each thing wakes it once, and a former harness can neither speak nor block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from workers.harness.base import Message
from workers.mailbox import MAX_BYTES, MAX_OUTPUTS, Mailbox


def waits(box: Mailbox, timeout: float = 0.05) -> bool:
    """Whether a wait now runs into its timeout."""
    began = time.monotonic()
    box.wait(timeout)
    return time.monotonic() - began >= timeout


@pytest.mark.parametrize(
    "happens", [Mailbox.news, Mailbox.drain, Mailbox.stop, lambda box: box.lost("why"), lambda box: box.ended(box.fresh())]
)
def test_what_happened_wakes_once_and_not_for_ever(happens: Callable[[Mailbox], None]) -> None:
    box = Mailbox()
    assert waits(box)
    happens(box)
    assert not waits(box, 5.0)
    assert waits(box), "else the runner would spin until its turn has ended"


@pytest.mark.parametrize("happens", [Mailbox.drain, Mailbox.stop, lambda box: box.lost("why")])
def test_it_wakes_who_waits_already(happens: Callable[[Mailbox], None]) -> None:
    box = Mailbox()
    woken = threading.Event()
    thread = threading.Thread(target=lambda: (box.wait(30), woken.set()))
    thread.start()
    happens(box)
    assert woken.wait(5)
    thread.join(5)


def test_the_end_stays_known() -> None:
    box = Mailbox()
    box.ended(box.fresh())
    assert box.wait(0)[2]
    assert box.wait(0)[2]
    box.fresh()
    assert not box.wait(0)[2]


@pytest.mark.parametrize(("count", "size"), [(MAX_OUTPUTS + 1, 0), (1, MAX_BYTES + 1)])
def test_a_full_mailbox_makes_a_harness_wait_and_a_former_one_gives_up(count: int, size: int) -> None:
    box = Mailbox()
    old = box.fresh()
    box.put([Message("kept")] * count, old, size)
    done = threading.Event()
    thread = threading.Thread(target=lambda: (box.put([Message("late")], old), done.set()))
    thread.start()
    assert not done.wait(0.1)
    new = box.fresh()
    assert done.wait(5)
    thread.join(5)
    box.ended(old)
    box.put([Message("of the next")], new)
    outputs, _, ended = box.wait(0)
    assert outputs == [Message("of the next")], "nothing of the old one is taken for the new one's"
    assert not ended


def test_reading_makes_room() -> None:
    box = Mailbox()
    source = box.fresh()
    box.put([Message("a")], source, MAX_BYTES + 1)
    thread = threading.Thread(target=lambda: box.put([Message("b")], source))
    thread.start()
    assert box.wait(5)[0] == [Message("a")]
    assert box.wait(5)[0] == [Message("b")]
    thread.join(5)


def test_who_has_lost_the_lease_hears_nothing_more() -> None:
    box = Mailbox()
    source = box.fresh()
    box.lost("fenced")
    box.put([Message("late")] * 3, source, MAX_BYTES + 1)
    box.put([Message("late")], source)
    assert box.wait(0)[0] == []
    assert box.loss == "fenced"
