"""A store is tried out before anything is entrusted to it."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.errors import Unavailable
from app.store.contract import PreconditionFailed, Store
from app.store.faults import Fault, Faulty
from app.store.memory import MemoryStore
from app.store.probe import probe
from app.store.puts import Pace


def test_a_store_that_keeps_its_promises_passes_and_is_left_as_it_was(store: Store) -> None:
    store.put("mine", b"1")
    probe(store)
    assert store.list("") == ["mine"]


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RACED, Fault.SLOW_DOWN, Fault.ERROR_BODY, Fault.LATE])
def test_a_store_that_only_stumbles_passes(fault: Fault) -> None:
    inner = MemoryStore()
    store = Faulty(inner, script=[fault, None, fault, fault])
    probe(store, pace=Pace(sleep=lambda _: None))
    assert inner.list("") == []


class Careless(MemoryStore):
    """Ignores the conditions named in `ignored`, as some S3-compatible stores do."""

    def __init__(self, *ignored: str) -> None:
        super().__init__()
        self.ignored = ignored

    def put(self, key: str, body: bytes, **options: Any) -> str:
        return super().put(key, body, **{name: value for name, value in options.items() if name not in self.ignored})


@pytest.mark.parametrize(
    ("ignored", "named"),
    [(["if_none_match"], "If-None-Match"), (["if_match"], "If-Match"), (["if_match", "if_none_match"], "If-None-Match")],
)
def test_a_store_that_ignores_a_condition_is_refused_by_name(ignored: list[str], named: str) -> None:
    store = Careless(*ignored)
    with pytest.raises(Unavailable, match=f"ignores {named}") as caught:
        probe(store)
    assert "use one that enforces it" in caught.value.message
    assert "\n" not in caught.value.message
    assert store.list("") == []


def test_a_store_that_refuses_what_it_should_do_is_refused() -> None:
    class Stubborn(MemoryStore):
        def put(self, key: str, body: bytes, **options: Any) -> str:
            if options.get("if_match"):
                raise PreconditionFailed(key)
            return super().put(key, body, **options)

    with pytest.raises(Unavailable, match="refused an update"):
        probe(Stubborn())


def test_a_store_that_forgets_is_refused() -> None:
    class Forgetful(MemoryStore):
        def get(self, key: str) -> Any:
            return super().get(key)._replace(body=b"other")

    with pytest.raises(Unavailable, match="does not give back"):
        probe(Forgetful())


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.SLOW_DOWN, Fault.LOST_REQUEST])
def test_a_store_that_can_not_be_reached_is_unavailable(fault: Fault) -> None:
    with pytest.raises(Unavailable):
        probe(Faulty(MemoryStore(), rates={fault: 1.0}), deadline_seconds=0.1)
