"""Keys of model vendors, per tenant: kept encrypted, given to agent processes by their environment.

A key is a variable of the vendor's agent program (`ANTHROPIC_API_KEY` for claude). A tenant's own goes before the deployment's.

Rules: a value is never shown again, not even shortened; what is encrypted is bound to its tenant, vendor and variable, so it can't be
moved; all keys of a tenant are one small object, changed by compare-and-swap.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from app.core.errors import Corrupt, Invalid, Missing, Unavailable
from app.store import keys
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json, update_json

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]{0,63}\Z")
_VENDOR = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_DEFAULTS = {"claude": "ANTHROPIC_API_KEY"}
_SECRET = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|AUTH|HEADERS?)\Z")
LONGEST = 4096
MOST = 64
_REFUSED = ("BYRE_", "LD_", "PYTHON", "NODE_", "GIT_")


class Shown(NamedTuple):
    """What is told of a key."""

    vendor: str
    variable: str
    created_at: int


class ModelKeys:
    """The keys of all tenants. `deployment`: variables of each vendor's agents that every tenant has."""

    def __init__(self, store: Store, cipher: Cipher, deployment: Mapping[str, Mapping[str, str]] | None = None) -> None:
        self._store, self._cipher, self._deployment = store, cipher, deployment or {}

    def put(self, tenant: str, vendor: str, value: str, variable: str | None, now: int) -> Shown:
        """Sets a key, over an older one. `variable` None: the vendor's usual one. `now`: Unix seconds. Raises Invalid, Unavailable."""
        name = _checked(tenant, vendor, variable)
        if not value or len(value) > LONGEST or not value.isprintable() or not value.isascii():
            raise Invalid(f"a key is 1 to {LONGEST} printable ASCII characters on one line", "key")
        sealed = base64.b64encode(self._cipher.encrypt(value.encode(), _context(tenant, vendor, name))).decode()
        entry = {"sealed": sealed, "created_at": now}

        def change(doc: dict[str, Any]) -> dict[str, Any]:
            vendors = {**doc["vendors"], vendor: {**doc["vendors"].get(vendor, {}), name: entry}}
            if sum(map(len, vendors.values())) > MOST:
                raise Invalid(f"a tenant has at most {MOST} keys", "vendor")
            return {**doc, "vendors": vendors}

        at = keys.model_keys(tenant)
        if not self._read(tenant):
            with contextlib.suppress(PreconditionFailed):
                create_json(self._store, at, {"vendors": {}})
        update_json(self._store, at, change)
        return Shown(vendor, name, now)

    def list(self, tenant: str) -> list[Shown]:
        """What keys a tenant has. Raises Invalid, Unavailable."""
        vendors = self._read(tenant).items()
        return [Shown(v, name, entry["created_at"]) for v, held in sorted(vendors) for name, entry in sorted(held.items())]

    def delete(self, tenant: str, vendor: str, variable: str | None) -> None:
        """Forgets a key. Raises Missing, Invalid, Unavailable."""
        name = _checked(tenant, vendor, variable)
        if name not in self._read(tenant).get(vendor, {}):
            raise Missing(f"{tenant} has no key {name} of {vendor}")

        def change(doc: dict[str, Any]) -> dict[str, Any]:
            left = {k: v for k, v in doc["vendors"].get(vendor, {}).items() if k != name}
            return {**doc, "vendors": {**doc["vendors"], vendor: left}}

        update_json(self._store, keys.model_keys(tenant), change)

    def variables(self, tenant: str, vendor: str) -> dict[str, str]:
        """What goes into the environment of a tenant's agents of `vendor`. Raises Corrupt, Unavailable."""
        found = dict(self._deployment.get(vendor, {}))
        for name, entry in self._read(tenant).get(vendor, {}).items():
            try:
                sealed = base64.b64decode(entry["sealed"])
                found[name] = self._cipher.decrypt(sealed, _context(tenant, vendor, name)).decode()
            except (Undecryptable, ValueError, KeyError) as error:
                raise Corrupt(f"the key {name} of {vendor} can't be read: {error}", keys.model_keys(tenant)) from error
        return found

    def _read(self, tenant: str) -> dict[str, dict[str, Any]]:
        if not keys.valid_tenant(tenant):
            raise Invalid("a tenant is 1 to 63 of a-z, 0-9 and -", "tenant")
        try:
            doc, _ = read_json(self._store, keys.model_keys(tenant))
        except Absent:
            return {}
        except StoreError as error:
            raise Unavailable(f"the model keys can't be read: {error}") from error
        vendors: dict[str, dict[str, Any]] = doc["vendors"]
        return vendors


def _checked(tenant: str, vendor: str, variable: str | None) -> str:
    """The variable's name. Raises Invalid."""
    if not keys.valid_tenant(tenant):
        raise Invalid("a tenant is 1 to 63 of a-z, 0-9 and -", "tenant")
    if not _VENDOR.match(vendor):
        raise Invalid("a vendor is a name in lower case such as claude", "vendor")
    name = variable or _DEFAULTS.get(vendor)
    if name is None:
        raise Invalid(f"say which variable {vendor} reads its key from", "variable")
    if not VARIABLE.match(name) or name.startswith(_REFUSED) or name in ("PATH", "HOME"):
        raise Invalid(f"{name[:64]!r} can't be the variable of a key", "variable")
    return name


def _context(tenant: str, vendor: str, name: str) -> bytes:
    return f"model-key:{tenant}:{vendor}:{name}".encode()


def secret_values(variables: Mapping[str, str]) -> list[str]:
    """Values of variables that by their names are secrets: for masking."""
    return [value for name, value in variables.items() if _SECRET.search(name) and value]
