"""Answers to several inbox items at once, with a store that fails in the middle: all of them, or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from app.core.errors import Conflict
from app.core.principal import Principal
from app.services.answers import CLAIM_SECONDS, Answers
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.writer import Clock
from app.store.contract import Store
from app.store.memory import MemoryStore

ANN = Principal("t", "user", "ann", "0" * 16, None, None)
BOB = Principal("t", "user", "bob", "1" * 16, None, None)
SESSION = {"id": "s" * 32, "project_id": "p", "task_id": "0" * 32, "thread_id": "s" * 32}
PAYLOAD: dict[str, Any] = {"question": "?", "options": [], "multiple": False}


class Silent:
    """A workspace log that takes everything, and turns that nobody waits for."""

    def publish(self, tenant: str, waiting: Sequence[dict[str, Any]]) -> list[int]:
        return [1] * len(waiting)

    def owe(self, tenant: str, task: str) -> None: ...

    def poke(self, tenant: str, task: str) -> None: ...


class Sleeper(Clock):
    """A clock that is put forward."""

    ahead = 0.0

    def now(self) -> float:
        return super().now() + self.ahead


class Dying:
    """Fails once when `when` says so of a key that is put, before or after it is there."""

    def __init__(self, store: Store, when: Callable[[str], bool], *, after: bool) -> None:
        self._store, self._when, self._after = store, when, after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, body: bytes, **more: Any) -> str:
        if not self._when(key):
            return self._store.put(key, body, **more)
        if self._after:
            self._store.put(key, body, **more)
        raise Crash


class Crash(BaseException):
    """The process is gone."""


def parts(store: Any, clock: Clock) -> tuple[Inbox, Answers]:
    silent: Any = Silent()
    inbox = Inbox(store, Entities(store, silent), clock)
    return inbox, Answers(store, inbox, silent, clock)


def both(text: str) -> dict[str, Any]:
    return {"responses": [{"item_id": item, "type": "other", "text": text} for item in ("a", "b")]}


@pytest.fixture
def store() -> MemoryStore:
    made = MemoryStore()
    inbox, _ = parts(made, Clock())
    for item in ("a", "b"):
        inbox.create("t", SESSION, "question", PAYLOAD, item)
    return made


def test_what_was_given_before_a_crash_is_given(store: MemoryStore) -> None:
    _, dying = parts(Dying(store, lambda key: "submissions" in key, after=True), Clock())
    with pytest.raises(Crash):
        dying.respond(ANN, both("mine"))
    inbox, answers = parts(store, Clock())
    with pytest.raises(Conflict):
        answers.respond(BOB, both("late"))
    for item in inbox.of_task("t", SESSION["task_id"]):
        assert (item["state"], item["resolved_by"], item["responses"][0]["text"]) == ("answered", "ann", "mine")
    assert inbox.list(BOB, {}) == []


def test_what_was_only_claimed_before_a_crash_is_free_after_a_while(store: MemoryStore) -> None:
    _, dying = parts(Dying(store, lambda key: "submissions" in key, after=False), Clock())
    with pytest.raises(Crash):
        dying.respond(ANN, both("mine"))
    clock = Sleeper()
    inbox, answers = parts(store, clock)
    assert [item["state"] for item in inbox.list(BOB, {})] == ["open", "open"]
    for body in (both("other"), {"responses": both("other")["responses"][:1]}):
        with pytest.raises(Conflict):
            answers.respond(BOB, body)
    clock.ahead = CLAIM_SECONDS + 1
    assert [item["resolved_by"] for item in answers.respond(BOB, both("other"))] == ["bob", "bob"]


def test_one_that_is_settled_frees_the_rest(store: MemoryStore) -> None:
    inbox, answers = parts(store, Clock())
    stale = [inbox.record("t", item) for item in ("a", "b")]
    answers.respond(BOB, {"responses": [{"item_id": "b", "type": "dismiss"}]})
    inbox.record = lambda tenant, item: next(doc for doc in stale if doc["id"] == item)  # type: ignore[method-assign]
    with pytest.raises(Conflict):
        answers.respond(ANN, both("mine"))
    fresh, again = parts(store, Clock())
    assert [(i["id"], i["state"], i.get("claim")) for i in fresh.of_task("t", SESSION["task_id"])] == [
        ("a", "open", None), ("b", "dismissed", None),
    ]  # fmt: skip
    assert again.respond(ANN, {"responses": both("mine")["responses"][:1]})[0]["resolved_by"] == "ann"


def test_what_has_become_pointless_breaks_a_claim_and_no_answer_that_was_given(store: MemoryStore) -> None:
    _, dying = parts(Dying(store, lambda key: "submissions" in key, after=False), Clock())
    with pytest.raises(Crash):
        dying.respond(ANN, both("mine"))
    inbox, answers = parts(store, Clock())
    inbox.supersede("t", [inbox.record("t", "a")], "message")
    assert inbox.record("t", "a")["state"] == "superseded" and inbox.record("t", "b")["state"] == "open"
    inbox.create("t", SESSION, "question", PAYLOAD, "c")
    given = {"responses": [{"item_id": item, "type": "other", "text": "x"} for item in ("b", "c")]}
    with pytest.raises(Conflict):
        answers.respond(BOB, given)  # b is still claimed, for a while
    _, dying = parts(Dying(store, lambda key: "submissions" in key, after=True), late := Sleeper())
    late.ahead = CLAIM_SECONDS + 1
    with pytest.raises(Crash):
        dying.respond(ANN, given)
    inbox.supersede("t", [{"id": "b"}, {"id": "c"}], "message")
    assert [inbox.record("t", item)["state"] for item in ("b", "c")] == ["answered", "answered"]
