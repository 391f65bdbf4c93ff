"""The table of operations is exactly what the documents say, and each operation has a handler of its name."""

from __future__ import annotations

from typing import Any

import pytest

from app.http.app import App, create_app
from app.http.operations import BRAIN, BYRE, OPERATIONS, Operation
from tests.http.fakes import make_deps

METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}


def described(validator: Any, api: str) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation of a document, by operationId."""
    return {
        operation["operationId"]: (method.upper(), path, operation)
        for path, item in validator.documents.of(api)["paths"].items()
        for method, operation in item.items()
        if method in METHODS
    }


@pytest.mark.parametrize(("api", "table"), [("brain", BRAIN), ("byre", BYRE)])
def test_the_table_is_the_document(validator: Any, api: str, table: dict[str, Operation]) -> None:
    document = described(validator, api)
    assert {id: (method, path) for id, (method, path, _) in document.items()} == {
        operation.id: (operation.method, operation.path) for operation in table.values()
    }
    for id, (_, _, operation) in document.items():
        successes = [int(status) for status in operation["responses"] if status != "default" and int(status) < 300]
        assert table[id].status in successes, id
        assert table[id].body == ("application/json" in operation.get("requestBody", {}).get("content", {})), id


def test_the_contracts_share_no_id() -> None:
    assert len(OPERATIONS) == len(BRAIN) + len(BYRE)


def responders(app: App) -> dict[str, Any]:
    found = {}
    for operation in OPERATIONS.values():
        route = app._router.find(operation.path.replace("{", "").replace("}", ""))
        assert route is not None, operation.path
        _, by_method, _, template = route
        assert template == operation.path
        found[operation.id] = by_method[operation.method]
    return found


def test_every_operation_is_routed_to_the_handler_of_its_name() -> None:
    for id, responder in responders(create_app(make_deps())).items():
        assert responder.handler.__name__ == id
        assert responder.operation is OPERATIONS[id]


def test_a_row_without_a_handler_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPERATIONS, "fly", Operation("fly", "POST", "/fly", "sessions", frozenset({"management"})))
    with pytest.raises(AttributeError, match="fly"):
        create_app(make_deps())
