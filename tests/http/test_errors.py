"""Every error answers in the shape of its contract, with the right status, headers and no internals."""

from __future__ import annotations

from typing import Any

import botocore.exceptions
import pytest
import redis.exceptions

from app.core import errors
from app.http.errors import STATUS
from app.http.requests import UnsupportedMediaType
from app.store.contract import StoreError
from tests.http.conftest import Tier
from tests.http.fakes import OTHER_SESSION, SESSION, FakeSessions

SECRET = "postgres://user:hunter2@inside"
GET = f"/sessions/{SESSION}"

RAISED: list[tuple[Exception, int, str, dict[str, str]]] = [
    (errors.Invalid("config.model: is missing", "config.model"), 400, "invalid_request", {}),
    (errors.Unauthorized("no"), 401, "unauthorized", {"www-authenticate": "Bearer"}),
    (errors.Forbidden("no"), 403, "forbidden", {}),
    (errors.Missing("no such session"), 404, "not_found", {}),
    (errors.Conflict("a turn runs"), 409, "conflict", {}),
    (errors.CursorUnavailable("lost", "abc"), 409, "cursor_unavailable", {"byre-earliest-cursor": "abc"}),
    (errors.Fenced("gone"), 409, "conflict", {}),
    (errors.TooLarge("over 1 MiB"), 413, "body_limit", {}),
    (errors.Unsupported("no such harness"), 422, "unsupported", {}),
    (errors.Overloaded("full", 7), 429, "overloaded", {"retry-after": "7"}),
    (errors.Unavailable("no Redis", 3), 503, "unavailable", {"retry-after": "3"}),
    (errors.Corrupt("a segment fails its checksum", "tenants/acme/x"), 500, "brain_error", {}),
]
UNREACHABLE: list[Exception] = [
    StoreError(SECRET),
    redis.exceptions.ConnectionError(SECRET),
    redis.exceptions.TimeoutError(SECRET),
    botocore.exceptions.EndpointConnectionError(endpoint_url=SECRET),
    botocore.exceptions.ClientError({"Error": {"Code": "SlowDown", "Message": SECRET}}, "GetObject"),
]
BROKEN: list[Exception] = [ValueError(SECRET), KeyError(SECRET), errors.IllegalStep(SECRET), errors.ByreError(SECRET)]


def fail(tier: Tier, error: Exception, **more: Any) -> Any:
    tier.sessions.error = error
    return tier.call("GET", GET, **more)


@pytest.mark.parametrize(("error", "status", "code", "headers"), RAISED, ids=[type(row[0]).__name__ for row in RAISED])
def test_our_errors(tier: Tier, error: errors.ByreError, status: int, code: str, headers: dict[str, str]) -> None:
    answer = fail(tier, error)
    assert answer.status_code == status
    assert answer.json == {"error": {"code": code, "message": error.message}, "request_id": answer.headers["x-request-id"]}
    assert answer.headers["content-type"] == "application/json"
    assert {name: answer.headers[name] for name in headers} == headers


def test_every_error_of_core_has_a_status() -> None:
    ours = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.ByreError)}
    assert ours - {errors.ByreError, errors.IllegalStep} <= set(STATUS)  # those two are faults of ours: 500


@pytest.mark.parametrize("error", UNREACHABLE, ids=repr)
def test_lost_dependencies_are_503(tier: Tier, error: Exception) -> None:
    answer = fail(tier, error)
    assert (answer.status_code, answer.json["error"]["code"], answer.headers["retry-after"]) == (503, "unavailable", "2")
    assert "hunter2" not in answer.text


@pytest.mark.parametrize("error", BROKEN, ids=repr)
def test_what_nobody_foresaw_is_500_without_internals(tier: Tier, error: Exception) -> None:
    answer = fail(tier, error, headers={"X-Request-ID": "my-id"})
    assert answer.status_code == 500
    assert answer.json["error"]["code"] == "brain_error"
    assert answer.json["request_id"] == answer.headers["x-request-id"] == "my-id"
    assert "hunter2" not in answer.text
    assert "Traceback" not in answer.text


def test_an_answer_that_can_not_be_sent_is_500(tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeSessions, "get", lambda *_: {"bad": object()})
    answer = tier.call("GET", GET)
    assert (answer.status_code, answer.json["error"]["code"]) == (500, "brain_error")


def test_byre_has_its_own_shape(tier: Tier) -> None:
    for answer in (
        tier.call("GET", "/api/me", token=None),
        tier.call("GET", "/api/me"),
        tier.call("GET", "/api/me", token="user"),
        tier.call("GET", "/api/nowhere"),
        tier.call("PATCH", "/api/me"),
        tier.call("GET", "/api"),
    ):
        assert set(answer.json) == {"message"}
        assert answer.headers["x-request-id"]
    assert tier.call("GET", "/api/me", token="user").status_code == 501
    assert tier.call("GET", "/apis").json["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "not_found"),
        ("GET", "/sessions/", 400, "invalid_request"),
        ("GET", f"/sessions/{SESSION}/", 404, "not_found"),
        ("GET", f"/sessions/{OTHER_SESSION}", 404, "not_found"),
        ("GET", "/sessions/zzz", 400, "invalid_request"),
        ("GET", f"/sessions/{SESSION}0", 400, "invalid_request"),
        ("GET", "/sessions/%F0%9F%90%84", 400, "invalid_request"),
        ("GET", "/sessions/" + "%00" * 32, 400, "invalid_request"),
        ("DELETE", f"/sessions/{SESSION}/inputs/zzz", 400, "invalid_request"),
        ("DELETE", f"/sessions/{SESSION}", 405, "invalid_request"),
        ("PUT", "/sessions", 405, "invalid_request"),
        ("POST", "/healthz", 405, "invalid_request"),
    ],
)
def test_paths_and_methods(tier: Tier, method: str, path: str, status: int, code: str) -> None:
    answer = tier.call(method, path)
    assert (answer.status_code, answer.json["error"]["code"]) == (status, code)
    assert ("allow" in answer.headers) == (status == 405)


def test_a_bad_id_is_named(tier: Tier) -> None:
    assert tier.call("GET", "/sessions/zzz").json["error"]["message"].startswith("id: ")
    assert tier.call("DELETE", f"/sessions/{SESSION}/inputs/z").json["error"]["message"].startswith("event_id: ")


@pytest.mark.parametrize("given", ["a", "A-b_c.9", "x" * 128])
def test_a_sane_request_id_is_kept(tier: Tier, given: str) -> None:
    for path in (GET, "/nowhere", "/healthz"):
        assert tier.call("GET", path, headers={"X-Request-ID": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "a\tb", "ä", '"', "a,b", "<script>"])
def test_another_request_id_is_replaced(tier: Tier, given: str) -> None:
    seen = {tier.call("GET", GET, headers={"X-Request-ID": given}).headers["x-request-id"] for _ in range(2)}
    assert given not in seen
    assert len(seen) == 2


def test_head_and_options(tier: Tier) -> None:
    got = tier.call("GET", GET)
    head = tier.call("HEAD", GET)
    assert (head.status_code, head.text) == (200, "")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert tier.call("HEAD", GET, token=None).status_code == 401
    options = tier.call("OPTIONS", GET, token=None)
    assert options.status_code == 200
    assert {"GET", "HEAD"} <= set(options.headers["allow"].split(", "))


def test_415_is_an_invalid_request() -> None:
    assert UnsupportedMediaType("x").code == "invalid_request"
