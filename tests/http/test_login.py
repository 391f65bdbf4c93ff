"""A browser's login: the cookie, how far it reaches, and that pages of others can do nothing with it."""

from __future__ import annotations

import re
import time
from email.utils import parsedate_to_datetime
from types import SimpleNamespace
from typing import Any

import pytest

from app.http.operations import OPERATIONS
from app.http.origin import may_log_in, same_origin
from app.services.tokens import LOGIN_SECONDS, Tokens
from app.store.memory import MemoryStore
from tests.http.conftest import Tier

US = {"Host": "byre.example", "Origin": "https://byre.example", "Sec-Fetch-Site": "same-origin"}


class Users:
    def me(self, principal: Any) -> dict[str, Any]:
        return {"login": principal.login}

    update = update_prefs = lambda self, principal, body: self.me(principal)


class Door(Tier):
    """The application over real tokens."""

    def __init__(self, public_url: str = "https://byre.example") -> None:
        self.now = time.time()
        self.real = Tokens(MemoryStore(), "s" * 40, clock=lambda: self.now)
        self.id, self.token = self.real.create("acme", "user", login="ann")
        super().__init__(tokens=self.real, byre=SimpleNamespace(users=Users()), public_url=public_url)

    def login(self, token: str | None = None, **headers: str) -> Any:
        return self.call("POST", "/login", {"token": token or self.token}, token=None, headers=headers)

    def ask(self, method: str, path: str, cookie: str, json: Any = None, **headers: str) -> Any:
        given = {"Cookie": f"byre_session={cookie}", **headers}
        return self.call(method, path, json, token=None, headers=given)


@pytest.fixture
def door() -> Door:
    return Door()


def value(answer: Any) -> str:
    return str(answer.headers["set-cookie"].split(";")[0].partition("=")[2])


def test_a_token_becomes_a_cookie_that_pages_cannot_read(door: Door) -> None:
    answer = door.login()
    assert (answer.status_code, answer.json["login"]) == (200, "ann")
    parts = [part.strip().lower() for part in answer.headers["set-cookie"].split(";")]
    assert {"httponly", "secure", "samesite=strict", "path=/", f"max-age={LOGIN_SECONDS}"} <= set(parts)
    assert door.token not in answer.headers["set-cookie"]
    assert door.ask("GET", "/api/me", value(answer)).json == {"login": "ann"}


def test_a_form_is_led_on_and_to_nowhere_else(door: Door) -> None:
    body = f"token={door.token}&next=https://evil.example/"
    form = {"Content-Type": "application/x-www-form-urlencoded", **US}
    answer = door.call("POST", "/login", token=None, body=body, headers=form)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert door.ask("GET", "/api/me", value(answer)).status_code == 200


def test_without_https_the_cookie_is_not_secure() -> None:
    assert "secure" not in Door("http://127.0.0.1:8080").login().headers["set-cookie"].lower()


@pytest.mark.parametrize("token", ["byre_" + "x" * 43, "nobody", " ", "byrec.x"])
def test_what_is_no_token_is_401_and_sets_nothing(door: Door, token: str) -> None:
    answer = door.login(token)
    assert (answer.status_code, set(answer.json), "set-cookie" in answer.headers) == (401, {"message"}, False)


def test_bodies_that_are_none(door: Door) -> None:
    for body, kind, status in (
        (b"{", "application/json", 400),
        (b"[]", "application/json", 400),
        (b'{"token": 5}', "application/json", 400),
        (b"x", "text/plain", 415),
        (b" " * 9000, "application/json", 413),
        (b"a=b&" * 1000, "application/x-www-form-urlencoded", 400),
        (b"other=x", "application/x-www-form-urlencoded", 401),
    ):
        answer = door.call("POST", "/login", token=None, body=body, headers={"Content-Type": kind})
        assert answer.status_code == status, body[:20]


def test_a_token_without_a_login_is_403(door: Door) -> None:
    assert door.login(door.real.create("acme", "management")[1]).status_code == 403


def test_the_cookie_ends_with_its_term_and_with_its_token(door: Door) -> None:
    _, short = door.real.create("acme", "user", login="ann", expires_at=int(door.now) + 60)
    brief, lasting = value(door.login(short)), value(door.login())
    door.now += 61
    assert door.ask("GET", "/api/me", brief).status_code == 401
    assert door.ask("GET", "/api/me", lasting).status_code == 200
    door.real.revoke(door.id)
    assert door.ask("GET", "/api/me", lasting).status_code == 401
    _, other = door.real.create("acme", "user", login="ann")
    last = value(door.login(other))
    door.now += LOGIN_SECONDS + 1
    assert door.ask("GET", "/api/me", last).status_code == 401


def test_a_cookie_that_was_changed_is_401(door: Door) -> None:
    good = value(door.login())
    for bad in (good[:-1] + ("A" if good[-1] != "A" else "B"), good + "x", door.token, "x", '"' + good):
        assert door.ask("GET", "/api/me", bad).status_code == 401, bad


def test_it_is_no_bearer_token_and_a_token_no_cookie(door: Door) -> None:
    assert door.call("GET", "/api/me", token=value(door.login())).status_code == 401


def test_the_token_in_the_header_counts_first(door: Door) -> None:
    good = value(door.login())
    assert door.ask("GET", "/api/me", good, Authorization="Bearer nobody").status_code == 401
    evil = {"Authorization": f"Bearer {door.token}", "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert door.ask("PUT", "/api/me", good, {"git_name": "", "git_email": ""}, **evil).status_code == 200


def test_brain_does_not_know_the_cookie(door: Door) -> None:
    good = value(door.login())
    for operation in OPERATIONS.values():
        if operation.resource != "byre":
            path = operation.path.replace("{id}", "0" * 32).replace("{event_id}", "0" * 32)
            assert door.ask(operation.method, path, good, {} if operation.body else None, **US).status_code == 401, operation.id


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (US, 200),
        ({"Host": "byre.example", "Sec-Fetch-Site": "same-origin"}, 200),
        ({"Host": "inside:8080", "Origin": "https://byre.example"}, 200),
        ({"Host": "byre.example"}, 403),
        ({**US, "Sec-Fetch-Site": "cross-site"}, 403),
        ({**US, "Sec-Fetch-Site": "same-site"}, 403),
        ({**US, "Sec-Fetch-Site": "none"}, 403),
        ({**US, "Origin": "https://evil.example"}, 403),
        ({**US, "Origin": "https://byre.example:444"}, 403),
        ({**US, "Origin": "http://byre.example"}, 403),
        ({**US, "Origin": "null"}, 403),
        ({"Host": "byre.example", "Origin": "null"}, 403),
    ],
)
def test_a_change_needs_a_page_of_ours(door: Door, headers: dict[str, str], status: int) -> None:
    good = value(door.login())
    answer = door.ask("PUT", "/api/me", good, {"git_name": "", "git_email": ""}, **headers)
    assert answer.status_code == status
    assert door.ask("GET", "/api/me", good, **{k: v for k, v in headers.items() if k == "Host"}).status_code == 200


def test_pages_of_others_log_nobody_in_or_out(door: Door) -> None:
    evil = {"Host": "byre.example", "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
    assert door.login(**evil).status_code == 403
    assert door.call("POST", "/logout", token=None, headers=evil).status_code == 403
    assert door.login(**US).status_code == 200


def test_logging_out_takes_the_cookie_away(door: Door) -> None:
    answer = door.call("POST", "/logout", token=None, headers=US)
    assert answer.status_code == 204
    assert 'byre_session="";' in answer.headers["set-cookie"]
    ends = re.search(r"expires=([^;]+)", answer.headers["set-cookie"])
    assert ends
    assert parsedate_to_datetime(ends[1]).timestamp() <= time.time()


def test_origins() -> None:
    assert same_origin("http://127.0.0.1:8080", None, "127.0.0.1:8080", "")
    assert same_origin("http://[::1]:80", None, "[::1]", "")
    assert not same_origin("http://127.0.0.1:8081", None, "127.0.0.1:8080", "")
    assert not same_origin("http://a.example", None, "", "")
    assert not same_origin("http://a.example:99999", None, "a.example:99999", "")
    assert not same_origin(None, None, "a.example", "")
    assert may_log_in(None, "none", "a.example", "")
    assert not may_log_in(None, "same-site", "a.example", "")
