"""H1: every route refuses callers without a token, with a bad or revoked one, of a lower scope, of another tenant.

`ALLOWED` says for each operation which callers may pass; a new operation fails here until it has a row.
"""

from __future__ import annotations

from typing import Any

import pytest

from app.http.operations import BRAIN, BYRE, OPERATIONS, Operation
from tests.http.conftest import Tier
from tests.http.fakes import CALLERS, OTHER_SESSION, SESSION

STAFF = {"management", "operator", "foreign"}
MEMBERS = STAFF | {"user"}
ALLOWED: dict[str, set[str]] = {
    "create": STAFF,
    "close": STAFF,
    "flush": STAFF,
    "restore": STAFF,
    "resume": STAFF,
    "registerExecutor": STAFF,
    "list": MEMBERS,
    "send": MEMBERS,
    "withdrawInput": MEMBERS,
    "sync": MEMBERS,
    "catalog": MEMBERS,
    "get": MEMBERS | {"inspection"},
    "events": MEMBERS | {"inspection"},
    "executorCommands": {"executor"},
    "executorReply": {"executor"},
    "executorRPC": {"executor"},
    "unregisterExecutor": {"executor"},
    **{id: {"operator", "user", "foreign"} for id in BYRE},  # those with a login
}
BODIES: dict[str, Any] = {
    "create": {"harness": "script", "config": {"model": "m", "tools": []}},
    "send": {"type": "user.message", "text": "hello"},
    "restore": {"checkpoint": OTHER_SESSION},
}
HAS_OBJECT = [operation for operation in BRAIN.values() if operation.path.startswith("/sessions/{id}")]
every = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def call(tier: Tier, operation: Operation, **more: Any) -> Any:
    path = operation.path
    while "{" in path:
        start, _, rest = path.partition("{")
        path = start + SESSION + rest.partition("}")[2]
    return tier.call(operation.method, path, BODIES.get(operation.id, {} if operation.body else None), **more)


def refused(answer: Any, operation: Operation, status: int) -> bool:
    """Whether `answer` is the contract's error, and tells nothing but that."""
    document = answer.json
    shaped = set(document) == {"message"} if operation.id in BYRE else set(document) == {"error", "request_id"}
    return bool(
        answer.status_code == status and shaped and SESSION not in answer.text.replace(answer.headers["x-request-id"], "")
    )


def test_every_operation_has_a_row() -> None:
    assert set(ALLOWED) == set(OPERATIONS)


@every
def test_without_a_good_token_it_is_401(tier: Tier, operation: Operation) -> None:
    for header in (
        None,
        "",
        "Bearer",
        "Bearer ",
        "Bearer nobody",
        "Basic bWFuYWdlbWVudA==",
        "management",
        "Bearer user,Bearer user",
    ):
        answer = call(tier, operation, token=None, headers={} if header is None else {"Authorization": header})
        assert refused(answer, operation, 401), header
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not tier.sessions.calls


@every
def test_a_revoked_token_is_401(tier: Tier, operation: Operation) -> None:
    for name in CALLERS:
        tier.tokens.revoke(name)
        assert refused(call(tier, operation, token=name), operation, 401)
    assert not tier.sessions.calls


@every
def test_the_scope_decides(tier: Tier, operation: Operation) -> None:
    for name in CALLERS:
        called = len(tier.sessions.calls)
        answer = call(tier, operation, token=name)
        if name in ALLOWED[operation.id]:
            assert answer.status_code not in (401, 403), name
        else:
            assert refused(answer, operation, 403), name
            assert len(tier.sessions.calls) == called


@pytest.mark.parametrize("operation", HAS_OBJECT, ids=lambda operation: operation.id)
def test_an_object_of_another_tenant_is_404(tier: Tier, operation: Operation) -> None:
    assert refused(call(tier, operation, token="foreign"), operation, 404)


@pytest.mark.parametrize("name", ["inspection", "executor"])
def test_a_bound_token_reaches_its_object_only(tier: Tier, name: str) -> None:
    for operation in OPERATIONS.values():
        if name in ALLOWED[operation.id]:
            other = tier.call(operation.method, operation.path.replace("{id}", OTHER_SESSION), token=name)
            assert refused(other, operation, 403)
    assert not tier.sessions.calls


def test_a_bound_token_may_spell_its_object_in_upper_case(tier: Tier) -> None:
    assert tier.call("GET", f"/sessions/{SESSION.upper()}", token="inspection").status_code == 200


def test_the_scheme_counts_in_any_case(tier: Tier) -> None:
    assert tier.call("GET", "/catalog", token=None, headers={"Authorization": "bEaReR management"}).status_code == 200


@every
def test_the_caller_is_refused_before_anything_else_is_looked_at(tier: Tier, operation: Operation) -> None:
    path = operation.path.replace("{id}", "not-an-id").replace("{", "").replace("}", "")
    answer = tier.client.simulate_request(operation.method, path, body=b"{" * 2_000_000, headers={"Content-Type": "text/plain"})
    assert answer.status_code == 401
