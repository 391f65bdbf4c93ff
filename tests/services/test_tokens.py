"""Tokens: only their hash is kept, lookups are few, and what is revoked, expired or forged gets nowhere."""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.core.errors import Invalid, Missing, Unauthorized, Unavailable
from app.core.principal import Principal
from app.services.tokens import NEGATIVE_SECONDS, POSITIVE_SECONDS, Tokens
from app.store.contract import Got, StoreError
from app.store.memory import MemoryStore

SECRET = "a secret of the deployment"


class Clock:
    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class CountingStore(MemoryStore):
    """Counts reads by key; can be made to fail, or to hold a read until told."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: Counter[str] = Counter()
        self.broken = False
        self.gate = threading.Event()
        self.gate.set()

    def get(self, key: str) -> Got:
        self.reads[key] += 1
        assert self.gate.wait(10)
        if self.broken:
            raise StoreError("timed out")
        return super().get(key)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def clock() -> Clock:
    return Clock()


def make(store: CountingStore, clock: Clock, **more: int) -> Tokens:
    return Tokens(store, SECRET, clock=clock, monotonic=clock, **more)


def test_a_token_says_who_is_calling(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    token_id, plaintext = tokens.create("acme", "user", "ann", name="laptop")
    caller = tokens.authenticate(plaintext)
    assert (caller.tenant, caller.scope, caller.login, caller.token_id) == ("acme", "user", "ann", token_id)
    assert make(store, clock).authenticate(plaintext) == caller


def test_the_store_never_holds_the_plaintext(store: CountingStore, clock: Clock) -> None:
    _, plaintext = make(store, clock).create("acme", "management")
    keys = store.list("")
    assert keys
    for key in keys:
        assert plaintext not in key
        assert plaintext.removeprefix("byre_").encode() not in store.get(key).body


def test_one_read_for_many_requests(store: CountingStore, clock: Clock) -> None:
    _, plaintext = make(store, clock).create("acme", "management")
    tokens = make(store, clock)
    store.reads.clear()
    for _ in range(100):
        tokens.authenticate(plaintext)
    assert sum(store.reads.values()) == 1
    clock.now += POSITIVE_SECONDS
    tokens.authenticate(plaintext)
    assert sum(store.reads.values()) == 2


def test_one_read_for_requests_at_the_same_time(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    _, plaintext = tokens.create("acme", "management")
    store.reads.clear()
    store.gate.clear()
    together = threading.Barrier(21)

    def ask() -> Principal:
        together.wait(10)
        return tokens.authenticate(plaintext)

    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(ask) for _ in range(20)]
        together.wait(10)
        while not store.reads:
            time.sleep(0.001)
        store.gate.set()
        assert len({future.result().token_id for future in asked}) == 1
    assert sum(store.reads.values()) == 1


def test_a_failed_read_is_shared_and_not_remembered(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    _, plaintext = tokens.create("acme", "management")
    store.broken = True
    with pytest.raises(Unavailable):
        tokens.authenticate(plaintext)
    store.broken = False
    assert tokens.authenticate(plaintext).tenant == "acme"


def test_unknown_tokens_are_remembered_for_a_moment(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    strange = "byre_" + "x" * 43
    for _ in range(5):
        with pytest.raises(Unauthorized):
            tokens.authenticate(strange)
    assert sum(store.reads.values()) == 1
    clock.now += NEGATIVE_SECONDS
    with pytest.raises(Unauthorized):
        tokens.authenticate(strange)
    assert sum(store.reads.values()) == 2


@pytest.mark.parametrize("text", ["", "bogus", "byre_", "byre_" + "x" * 42, "byre_" + "x" * 44, "byre_" + "!" * 43, "x" * 9000])
def test_what_can_not_be_a_token_never_reaches_the_store(store: CountingStore, clock: Clock, text: str) -> None:
    with pytest.raises(Unauthorized):
        make(store, clock).authenticate(text)
    assert not store.reads


def test_the_caches_are_bounded(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock, size=10)
    for n in range(50):
        with pytest.raises(Unauthorized):
            tokens.authenticate(f"byre_{n:043d}")
    made = [tokens.create("acme", "management")[1] for _ in range(20)]
    for plaintext in made:
        tokens.authenticate(plaintext)
    assert (len(tokens._known), len(tokens._unknown)) == (10, 10)
    store.reads.clear()
    tokens.authenticate(made[-1])
    assert not store.reads


def test_a_revoked_token_is_refused(store: CountingStore, clock: Clock) -> None:
    tokens, other = make(store, clock), make(store, clock)
    token_id, plaintext = tokens.create("acme", "management")
    other.authenticate(plaintext)
    tokens.revoke(token_id)
    tokens.revoke(token_id)
    with pytest.raises(Unauthorized):
        tokens.authenticate(plaintext)
    other.authenticate(plaintext)  # another process may know it for a moment longer
    clock.now += 1.0
    with pytest.raises(Unauthorized):
        other.authenticate(plaintext, fresh=1.0)
    with pytest.raises(Unauthorized):
        other.authenticate(plaintext)


def test_revocation_reaches_other_processes_in_time(store: CountingStore, clock: Clock) -> None:
    tokens, other = make(store, clock), make(store, clock)
    token_id, plaintext = tokens.create("acme", "management")
    other.authenticate(plaintext)
    tokens.revoke(token_id)
    clock.now += POSITIVE_SECONDS
    with pytest.raises(Unauthorized):
        other.authenticate(plaintext)


def test_a_token_expires_at_its_time_also_in_the_cache(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    _, plaintext = tokens.create("acme", "user", "ann", expires_at=int(clock.now) + 5)
    clock.now += 4.9
    tokens.authenticate(plaintext)
    clock.now += 0.1
    with pytest.raises(Unauthorized):
        tokens.authenticate(plaintext)


def test_lists_and_revokes_within_the_tenant(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    mine, _ = tokens.create("acme", "management", name="ci")
    clock.now += 1
    second, _ = tokens.create("acme", "user", "ann")
    theirs, plaintext = tokens.create("rival", "management")
    assert [record.token_id for record in tokens.list("acme")] == [mine, second]
    assert tokens.list("acme")[0].name == "ci"
    with pytest.raises(Missing):
        tokens.revoke(theirs, "acme")
    assert tokens.authenticate(plaintext).tenant == "rival"
    for bad in ("0" * 16, "", "../" + theirs, theirs[:8]):
        with pytest.raises(Missing):
            tokens.revoke(bad)


def test_refuses_tokens_that_make_no_sense(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    for scope, login, expires_at in (("user", None, None), ("executor", None, None), ("management", None, 1)):
        with pytest.raises(Invalid):
            tokens.create("acme", scope, login, expires_at)  # type: ignore[arg-type]
    for tenant, login in (("Acme", "ada"), ("../x", "ada"), ("a b", "ada"), ("", "ada"), ("a", "a\nb"), ("a", "ü" * 100)):
        with pytest.raises(Invalid):
            tokens.create(tenant, "user", login)
    assert store.list("tokens/") == []
    tokens.create("a", "user", "Ada O'Ü <ada@example.com>/x")


def test_signed_tokens_are_bound_to_their_object(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    caller = tokens.authenticate(tokens.executor_credential("acme", "ex1", login="ann"))
    assert (caller.tenant, caller.scope, caller.executor, caller.session, caller.login) == (
        "acme",
        "executor",
        "ex1",
        None,
        "ann",
    )
    caller = tokens.authenticate(tokens.inspection("acme", "s1"))
    assert (caller.tenant, caller.scope, caller.executor, caller.session, caller.login) == (
        "acme",
        "inspection",
        None,
        "s1",
        None,
    )
    assert not store.reads


def test_signed_tokens_end(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    token = tokens.inspection("acme", "s1", seconds=5)
    clock.now += 4
    tokens.authenticate(token)
    clock.now += 1
    with pytest.raises(Unauthorized):
        tokens.authenticate(token)


def test_signed_tokens_can_not_be_forged(store: CountingStore, clock: Clock) -> None:
    tokens = make(store, clock)
    token = tokens.inspection("acme", "s1")
    kind, _, rest = token.partition(".")
    payload, _, signature = rest.rpartition(".")
    foreign = Tokens(store, "another secret", clock=clock, monotonic=clock)
    as_executor = "byrex." + rest  # the same payload under the other purpose
    changed = f"{kind}.{payload[:-1]}{'A' if payload[-1] != 'A' else 'B'}.{signature}"
    for forged in (
        foreign.inspection("acme", "s1"),
        as_executor,
        changed,
        f"{kind}.{payload}",
        f"{kind}.{payload}.",
        token + "A",
    ):
        with pytest.raises(Unauthorized):
            tokens.authenticate(forged)
