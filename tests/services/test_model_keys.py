"""Keys of model vendors: encrypted at rest, bound to their place, a tenant's before the deployment's."""

from __future__ import annotations

import json

import pytest

from app.core.errors import Corrupt, Invalid, Missing
from app.services.model_keys import ModelKeys, secret_values
from app.store import keys
from app.store.cipher import Cipher
from app.store.memory import MemoryStore

SECRET = "s" * 32


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def model_keys(store: MemoryStore) -> ModelKeys:
    deployment = {"claude": {"ANTHROPIC_API_KEY": "sk-deployment"}}
    return ModelKeys(store, Cipher(SECRET, purpose="model-keys"), deployment)


def test_a_tenant_s_key_goes_first_and_is_not_readable_in_the_store(store: MemoryStore, model_keys: ModelKeys) -> None:
    assert model_keys.variables("acme", "claude") == {"ANTHROPIC_API_KEY": "sk-deployment"}
    assert model_keys.put("acme", "claude", "sk-acme-1", None, 5).variable == "ANTHROPIC_API_KEY"
    model_keys.put("acme", "codex", "sk-codex", "OPENAI_API_KEY", 6)
    assert model_keys.variables("acme", "claude") == {"ANTHROPIC_API_KEY": "sk-acme-1"}
    assert model_keys.variables("acme", "codex") == {"OPENAI_API_KEY": "sk-codex"}
    assert model_keys.variables("other", "claude") == {"ANTHROPIC_API_KEY": "sk-deployment"}
    body = store.get(keys.model_keys("acme")).body
    assert b"sk-acme" not in body and b"sk-codex" not in body
    model_keys.put("acme", "claude", "sk-acme-2", None, 7)
    assert [(shown.vendor, shown.created_at) for shown in model_keys.list("acme")] == [("claude", 7), ("codex", 6)]
    model_keys.delete("acme", "claude", None)
    assert model_keys.variables("acme", "claude") == {"ANTHROPIC_API_KEY": "sk-deployment"}
    with pytest.raises(Missing):
        model_keys.delete("acme", "claude", None)


def test_a_key_moved_to_another_tenant_is_refused(store: MemoryStore, model_keys: ModelKeys) -> None:
    model_keys.put("acme", "claude", "sk-acme", None, 5)
    store.put(keys.model_keys("thief"), store.get(keys.model_keys("acme")).body)
    with pytest.raises(Corrupt) as error:
        model_keys.variables("thief", "claude")
    assert error.value.key == "tenants/thief/model-keys.json"
    assert json.loads(store.get(error.value.key).body)["vendors"]["claude"]


@pytest.mark.parametrize(
    ("tenant", "vendor", "value", "variable"),
    [
        ("Acme", "claude", "k", None),
        ("acme", "Claude", "k", None),
        ("acme", "codex", "k", None),
        ("acme", "claude", "", None),
        ("acme", "claude", "two\nlines", None),
        ("acme", "claude", "k" * 5000, None),
        ("acme", "claude", "k", "PATH"),
        ("acme", "claude", "k", "LD_PRELOAD"),
        ("acme", "claude", "k", "BYRE_SECRET_KEY"),
        ("acme", "claude", "k", "a=b"),
    ],
)
def test_what_can_t_be_a_key(model_keys: ModelKeys, tenant: str, vendor: str, value: str, variable: str | None) -> None:
    with pytest.raises(Invalid):
        model_keys.put(tenant, vendor, value, variable, 1)


def test_which_variables_are_secrets() -> None:
    variables = {"A_KEY": "1", "A_TOKEN": "2", "ANTHROPIC_CUSTOM_HEADERS": "3", "PATH": "4", "TOKENS_MAX": "5", "B_SECRET": ""}
    assert secret_values(variables) == ["1", "2", "3"]
