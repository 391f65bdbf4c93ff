"""Web Push with real processes and a stand-in for a push service: who is told what, once, and what services can do to us (G1 to G3)."""

from __future__ import annotations

import contextlib
import secrets
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from app import wiring
from app.services.entities import Entities
from app.services.inbox import Inbox
from app.services.tokens import Tokens
from app.services.workspace_log import WorkspaceLog
from app.services.writer import Clock
from app.settings import Settings
from app.store import keys
from app.store.puts import read_json
from tests.support.client import until
from tests.support.deployment import TENANT, Api, Deployment, deployment
from tests.support.people import People, ask
from tests.support.push_service import Browser, PushService, push_service
from tests.tools.loopback import Peer


class House:
    """A deployment, a push service, and what an inbox item needs."""

    def __init__(self, it: Deployment, service: PushService) -> None:
        self.it, self.service = it, service
        self.base = wiring.connect(Settings.from_env(it.env), "test")
        log = wiring.log_of(self.base, wiring.coord_of(self.base))
        self.entities = Entities(self.base.store, WorkspaceLog(log))
        self.inbox = Inbox(self.base.store, self.entities, Clock())
        self.tokens = Tokens(self.base.store, it.env["BYRE_SECRET_KEY"])

    @property
    def api(self) -> Api:
        return self.it.apis[0]

    def user(self, login: str = "", **prefs: bool) -> tuple[str, str]:
        """Login and token of a new user with these preferences."""
        login = login or "u" + secrets.token_hex(4)
        _, token = self.tokens.create(TENANT, "user", login=login)
        if prefs:
            names = ("blocking_questions", "questions", "reports", "errors", "rate_limits")
            body = {name: prefs.get(name, False) for name in names}
            assert self.api.call("PUT", "/api/me/notifications", body, token=token).status == 200
        return login, token

    def device(self, token: str, browser: Browser | None = None) -> Browser:
        browser = browser or self.service.browser()
        answer = self.api.call("POST", "/api/me/push-subscriptions", browser.subscription, token=token)
        assert answer.status == 204, answer
        return browser

    def item(self, kind: str = "question", *, blocking: bool = True, thread: str = "", **payload: Any) -> str:
        item = Clock().id()
        session = {"project_id": Clock().id(), "task_id": Clock().id(), "id": Clock().id(), "thread_id": thread or Clock().id()}
        payload = payload or {"question": "May I delete the old tests?"}
        self.inbox.create(TENANT, session, kind, payload, item, blocking=blocking)
        return item

    def rows(self, item: str) -> list[dict[str, Any]]:
        """The ledger's rows of an item once none is due; [] until then."""
        with contextlib.suppress(Exception):
            rows = list(read_json(self.base.store, keys.push_ledger(TENANT, item))[0]["rows"].values())
            return rows if all(row["state"] != "due" for row in rows) else []
        return []

    def settled(self, item: str, login: str, seconds: float = 60) -> list[tuple[str, str]]:
        """State and reason of a user's rows, when all are settled."""
        rows = until(f"{item} is settled", lambda: self.rows(item), seconds=seconds)
        return [(row["state"], row["why"]) for row in rows if row["login"] == login]

    def stop(self) -> None:
        self.base.close()


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    env = {
        "BYRE_OUTGOING_ALLOW": "127.0.0.1",
        "BYRE_PUSH_CONTACT": "mailto:ops@byre.example",
        "BYRE_PUBLIC_URL": "https://byre.example",
    }
    with push_service() as service, deployment(workers=2, env=env) as it:
        made = House(it, service)
        yield made
        made.stop()


def test_a_blocking_question_reaches_every_device_of_who_wants_it(house: House) -> None:
    login, token = house.user()
    _, deaf = house.user(reports=True)
    browsers = [house.device(token), house.device(token)]
    silent = house.device(deaf)
    item = house.item()
    assert house.settled(item, login) == [("sent", "the push service answered 201")] * 2
    key = house.api.call("GET", "/api/push/key", token=token).json["public_key"]
    for browser in browsers:
        (got,) = house.service.of(browser)
        assert got.message["item_id"] == item
        assert got.message["url"] == f"https://byre.example/inbox/{item}"
        assert got.message["body"] == "May I delete the old tests?"
        assert (got.headers["urgency"], got.headers["ttl"], got.headers["topic"]) == ("high", "86400", item)
        assert (got.key, got.claims["sub"]) == (key, "mailto:ops@byre.example")
    assert house.service.of(silent) == []
    assert not house.service.refused


def test_an_agent_asks_and_its_people_are_told(house: House) -> None:
    _, token = house.user()
    browser = house.device(token)
    people = People(house.it)
    task = people.project().task("Old tests")
    session = people.work(task, ask("May I delete them?", blocking=True, why_blocked="they fail"))
    (item,) = people.inbox(task, "question")
    until("the browser is told", lambda: house.service.of(browser))
    (got,) = house.service.of(browser)
    assert (got.message["item_id"], got.message["title"]) == (item["id"], "Blocked: Old tests")
    assert item["agent_session_id"] == session


def test_preferences_decide_and_the_ledger_says_so(house: House) -> None:
    login, token = house.user(reports=True, questions=True, blocking_questions=False)
    browser = house.device(token)
    thread = Clock().id()
    asked = house.item()
    first = house.item("report", blocking=False, thread=thread, text="All is done. " * 100)
    second = house.item("report", blocking=False, thread=thread, text="Now really.")
    quiet = house.item(blocking=False)
    assert house.settled(asked, login) == [("suppressed", "the user's preferences")]
    for item in (first, second, quiet):
        assert [state for state, _ in house.settled(item, login)] == ["sent"]
    got = {each.message["item_id"]: each for each in house.service.of(browser)}
    assert set(got) == {first, second, quiet}
    assert got[first].headers["topic"] == got[second].headers["topic"] != got[quiet].headers["topic"]
    assert got[first].headers["urgency"] == "normal"
    assert (got[quiet].headers["urgency"], len(got[first].message["body"])) == ("low", 240)


def test_an_endpoint_moves_to_who_registered_it_last_and_removing_it_ends_it(house: House) -> None:
    (first, one), (second, two) = house.user(), house.user()
    browser = house.device(one)
    house.device(two, browser)
    item = house.item()
    assert house.settled(item, second) == [("sent", "the push service answered 201")]
    assert house.settled(item, first) == []
    path = f"/api/me/push-subscriptions?endpoint={browser.subscription['endpoint']}"
    assert house.api.call("DELETE", path, token=one).status == 204
    assert [state for state, _ in house.settled(house.item(), second)] == ["sent"]
    assert house.api.call("DELETE", path, token=two).status == 204
    assert house.api.call("DELETE", path, token=two).status == 204
    _, other = house.user()
    house.device(other)
    assert house.settled(house.item(), second) == []
    assert len(house.service.of(browser)) == 2


def test_who_is_shut_out_is_not_told(house: House) -> None:
    login, token = house.user()
    browser = house.device(token)
    house.device(house.user()[1])
    house.tokens.revoke(house.tokens.authenticate(token).token_id)
    assert house.settled(house.item(), login) == []
    assert house.service.of(browser) == []


@pytest.mark.parametrize("status", [404, 410])
def test_a_device_that_is_gone_is_removed_once(house: House, status: int) -> None:
    login, token = house.user()
    browser = house.device(token)
    other = house.device(house.user()[1])

    def only_it() -> None:
        house.service.answers = [
            lambda peer: peer.answer(status if peer.seen.path in browser.subscription["endpoint"] else 201)
        ] * 50

    only_it()
    item = house.item()
    assert house.settled(item, login) == [("gone", f"the push service answered {status}")]
    house.service.answers = []
    again = house.item()
    assert house.settled(again, login) == []
    assert len(house.service.of(browser)) == 1
    assert len(house.service.of(other)) == 2


def test_a_busy_service_is_asked_again_when_it_says(house: House) -> None:
    login, token = house.user()
    browser = house.device(token)
    tries: list[float] = []

    def busy(peer: Peer) -> None:
        if peer.seen.path not in browser.subscription["endpoint"]:
            peer.answer(201)
            return
        tries.append(time.time())
        if len(tries) == 1:
            peer.answer(429, Retry_After="7")
        else:
            peer.answer(201)

    house.service.answers = [busy] * 100
    item = house.item()
    try:
        assert house.settled(item, login) == [("sent", "the push service answered 201")]
    finally:
        house.service.answers = []
    assert len(tries) == 2
    assert tries[1] - tries[0] >= 7
    assert len({each.headers["topic"] for each in house.service.of(browser)}) == 1


def test_a_redirect_to_an_inner_address_is_not_followed(house: House) -> None:
    login, token = house.user()
    browser = house.device(token)
    inner = house.service.browser()

    def elsewhere(peer: Peer) -> None:
        if peer.seen.path in browser.subscription["endpoint"]:
            peer.answer(307, Location=inner.subscription["endpoint"])
        else:
            peer.answer(201)

    house.service.answers = [elsewhere] * 50
    assert house.settled(house.item(), login) == [("failed", "the push service answered 307")]
    house.service.answers = []
    assert house.service.of(inner) == []


def test_one_user_is_told_a_bounded_number_of_times_a_minute(house: House) -> None:
    login, token = house.user()
    browser = house.device(token)
    items = [house.item() for _ in range(45)]
    states = [state for item in items for state, _ in house.settled(item, login)]
    assert set(states) == {"sent", "suppressed"}
    assert 20 <= states.count("sent") <= 40  # a minute may end in between
    assert len(house.service.of(browser)) == states.count("sent")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("endpoint", "http://push.example/x"),
        ("endpoint", "ftp://push.example/x"),
        ("endpoint", "https://user:secret@push.example/x"),
        ("endpoint", "nothing"),
        ("p256dh", "AAAA"),
        ("p256dh", "BA" + "A" * 85),
        ("p256dh", "ü" * 87),
        ("auth", "AAAA"),
        ("auth", "*" * 22),
    ],
)
def test_what_can_not_be_a_subscription_is_400_and_names_its_field(house: House, field: str, value: str) -> None:
    _, token = house.user()
    body = {**house.service.browser().subscription, field: value}
    answer = house.api.call("POST", "/api/me/push-subscriptions", body, token=token)
    assert (answer.status, answer.json["message"].startswith(f"{field}: ")) == (400, True), answer


def test_a_mute_service_holds_up_nobody_else_and_no_turn(house: House) -> None:
    _, token = house.user()
    mute = house.device(token)

    def says_nothing(peer: Peer) -> None:
        if peer.seen.path in mute.subscription["endpoint"]:
            peer.gone(30)
        else:
            peer.answer(201)

    house.service.answers = [says_nothing] * 100
    quick = house.device(house.user()[1])
    house.item()
    until("it hangs", lambda: house.service.of(mute))
    session = house.api.session()
    began = time.monotonic()
    house.api.turn(session, "/say hello")
    assert time.monotonic() - began < 8
    house.service.answers = [says_nothing] * 100
    second = house.item()
    until("the other device is told", lambda: any(got.message["item_id"] == second for got in house.service.of(quick)))
    house.service.answers = []


def test_the_key_is_one_whoever_makes_it_and_stays(house: House) -> None:
    made = {wiring.vapid_of(house.base.settings, house.base.store).public_key() for _ in range(3)}
    made.add(house.api.call("GET", "/api/push/key").json["public_key"])
    assert len(made) == 1
    assert house.base.store.get(keys.vapid()).body.count(b"sealed") == 1


def test_no_secret_of_a_device_or_ours_is_in_a_log_or_in_clear_in_the_store(house: House) -> None:
    _, token = house.user()
    browser = house.device(token)
    house.settled(house.item(), "nobody")
    secrets_ = [browser.subscription["auth"], browser.subscription["p256dh"], browser.subscription["endpoint"], token]
    written = [path.read_bytes() for path in house.it.data.rglob("*") if path.is_file() and "redis" not in path.parts]
    for secret in secrets_:
        assert not any(secret.encode() in body for body in written), secret[:6]


@pytest.mark.chaos
def test_a_worker_killed_between_sending_and_settling_repeats_once_with_the_same_topic(house: House) -> None:
    login, token = house.user()
    browser = house.device(token)
    hit: list[str] = []

    def kill(peer: Peer) -> None:
        if peer.seen.path in browser.subscription["endpoint"] and not hit:
            hit.append("x")
            for worker in house.it.workers:
                worker.signal(signal.SIGKILL)
            peer.gone(5)
        else:
            peer.answer(201)

    house.service.answers = [kill] * 100
    item = house.item()
    until("the message has come", lambda: hit)
    for worker in house.it.workers:
        worker.ended()
        worker.start()
    assert [state for state, _ in house.settled(item, login, seconds=240)] == ["sent"]
    got = house.service.of(browser)
    assert len(got) == 2
    assert {each.headers["topic"] for each in got} == {item}
    house.service.answers = []
