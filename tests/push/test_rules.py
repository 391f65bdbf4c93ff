"""Rules of Web Push without processes: words, sizes, waits, and where we don't go."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from app.outgoing.client import Outgoing
from app.push import rules
from app.push.sender import Device, Sender
from app.push.vapid import Vapid
from app.store.cipher import Cipher
from app.store.memory import MemoryStore
from tests.support.push_service import Browser

ITEM: dict[str, Any] = {
    "id": "0198f2c4a7b07c1d9a3e5b6f8d2c4e10",
    "thread_id": "t",
    "kind": "question",
    "priority": "blocked",
    "blocking": True,
    "payload": {"question": "Which?"},
}


def test_any_text_fits_in_what_every_push_service_takes() -> None:
    for text in ("x" * 10_000, "\U0001f600" * 10_000, "\x00\x01\n" * 5000, '"\\' * 5000, "\ud800" * 500):
        for kind, name in (("question", "question"), ("report", "text"), ("session_error", "error"), ("rate_limited", "error")):
            item = {**ITEM, "kind": kind, "payload": {name: text}}
            assert len(rules.message(item, text, "https://byre.example/inbox/" + ITEM["id"])) < 3900


def test_every_kind_and_priority_has_its_rule() -> None:
    kinds = [("question", True), ("question", False), ("report", False), ("session_error", False), ("rate_limited", False)]
    found = [rules.preference({**ITEM, "kind": kind, "blocking": blocking}) for kind, blocking in kinds]
    assert found == ["blocking_questions", "questions", "reports", "errors", "rate_limits"]
    assert set(rules.MANNERS) == {"blocked", "gate", "review", "fyi"}
    assert all(len(rules.topic({**ITEM, "kind": kind, "id": "ü" * 40})) == 32 for kind, _ in kinds)


def test_what_a_status_means() -> None:
    means = {
        201: "sent",
        404: "gone",
        410: "gone",
        429: "retry",
        500: "retry",
        503: "retry",
        301: "failed",
        400: "failed",
        413: "failed",
    }
    assert {status: rules.outcome(status) for status in means} == means


def test_waits_grow_and_believe_the_service_within_bounds() -> None:
    assert [rules.wait(n, None, 0.0) for n in (1, 2, 3)] == [5.0, 15.0, 45.0]
    assert rules.wait(1, 60.0, 1.0) == 75.0
    assert rules.wait(1, 10**9, 0.0) == rules.LONGEST_WAIT


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fd00::1"])
def test_a_name_that_turns_private_is_not_reached(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    asked: list[str] = []

    def lookup(host: str, port: int, *_: Any) -> Any:
        asked.append(host)
        return [(family, socket.SOCK_STREAM, 6, "", (address, port))]

    vapid = Vapid(MemoryStore(), Cipher("k" * 32, purpose="push"), "mailto:ops@byre.example")
    browser = Browser("https://push.example/abc").subscription
    device = Device("0" * 64, "t", "ann", "", browser["endpoint"], browser["p256dh"], browser["auth"], "")
    result = Sender(Outgoing(lookup=lookup), vapid).send(device, b"{}", rules.MANNERS["fyi"], "topic")
    assert (result.outcome, result.why) == ("failed", "the address isn't public")
    assert asked == ["push.example"]


def test_a_retry_after_may_be_a_date() -> None:
    sender = Sender(Outgoing(), None, clock=lambda: 1_800_000_000.0)  # type: ignore[arg-type]
    assert sender._seconds("120") == 120
    assert sender._seconds("Fri, 15 Jan 2027 08:01:00 GMT") == 60
    assert sender._seconds("soon") is None
    assert sender._seconds(None) is None


def test_a_key_under_another_secret_is_an_error_and_never_replaced() -> None:
    store = MemoryStore()
    first = Vapid(store, Cipher("a" * 32, purpose="push"), "mailto:x@y.example").public_key()
    with pytest.raises(Exception, match="BYRE_SECRET_KEY"):
        Vapid(store, Cipher("b" * 32, purpose="push"), "mailto:x@y.example").public_key()
    assert Vapid(store, Cipher("a" * 32, purpose="push"), "mailto:x@y.example").public_key() == first
