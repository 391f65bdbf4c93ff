"""What an operator sets for a project: credentials for its origin, a set-up command, an environment, how it is merged. Kept encrypted.

A project is named here, for a private one can only be created when its credentials are there already.

Rules: nothing of it is shown again but names; what is encrypted is bound to tenant and project, so it can't be moved.
"""

from __future__ import annotations

import base64
import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import orjson

from app.core.errors import Corrupt, Invalid, Unavailable
from app.git.credentials import Credentials
from app.store import keys
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json, update_json

SETUP_SECONDS = 600
LONGEST = 65_536
MOST_VARIABLES = 100
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
_REFUSED = ("BYRE_", "LD_", "GIT_", "PYTHON", "NODE_OPTIONS")


class App(NamedTuple):
    """A GitHub App: its id, the id of its installation, its private key (PEM), and the address of the API that gives its tokens."""

    id: str
    installation: str
    private_key: str
    api: str = "https://api.github.com"


@dataclass(frozen=True, repr=False)
class ProjectSettings:
    """What is set for one project. `setup` is a shell command ("" for none), with `seconds` as its limit."""

    credentials: Credentials | None = None
    app: App | None = None
    setup: str = ""
    seconds: int = SETUP_SECONDS
    environment: Mapping[str, str] = field(default_factory=dict)
    pull_requests: bool = False
    """A merge pushes the task's branch, for people to merge it where they review it."""


class SettingsOfProjects:
    """The settings of all projects."""

    def __init__(self, store: Store, cipher: Cipher) -> None:
        self._store, self._cipher = store, cipher

    def get(self, tenant: str, name: str) -> ProjectSettings:
        """The settings of a project; empty ones where nothing is set. Raises Corrupt, Unavailable."""
        doc = self._read(tenant, name)
        app = doc.get("app")
        given = doc.get("credentials")
        return ProjectSettings(
            Credentials(**given) if given else None,
            App(**app) if app else None,
            doc.get("setup", ""),
            doc.get("seconds", SETUP_SECONDS),
            doc.get("environment", {}),
            doc.get("pull_requests", False),
        )

    def set_token(self, tenant: str, name: str, token: str, user: str | None = None) -> None:
        """A token for https, over other credentials. Raises Invalid, Unavailable."""
        made = Credentials(token=token, **({"user": user} if user else {}))
        self._change(tenant, name, {"credentials": {"token": made.token, "user": made.user}, "app": None})

    def set_deploy_key(self, tenant: str, name: str, key: str) -> None:
        """A private key for ssh, over other credentials. Raises Invalid, Unavailable."""
        made = Credentials(deploy_key=key)
        self._change(tenant, name, {"credentials": {"deploy_key": made.deploy_key}, "app": None})

    def set_app(self, tenant: str, name: str, app: App) -> None:
        """A GitHub App, over other credentials. Raises Invalid, Unavailable."""
        if not app.id.isdecimal() or not app.installation.isdecimal():
            raise Invalid("the ids of a GitHub App and of its installation are numbers", "app")
        if "PRIVATE KEY-----" not in app.private_key:
            raise Invalid("the key of a GitHub App is a private key in PEM format", "key")
        self._change(tenant, name, {"credentials": None, "app": app._asdict()})

    def drop_credentials(self, tenant: str, name: str) -> None:
        """Forgets the project's credentials. Raises Unavailable."""
        self._change(tenant, name, {"credentials": None, "app": None})

    def set_setup(self, tenant: str, name: str, command: str, seconds: int, environment: Mapping[str, str]) -> None:
        """The set-up command ("": none), its limit in seconds, and the environment of it and of agents. Raises Invalid, Unavailable."""
        if len(command) > LONGEST or "\0" in command:
            raise Invalid(f"command: at most {LONGEST} characters, without NUL", "command")
        if not 1 <= seconds <= 86_400:
            raise Invalid("seconds: must be from 1 to 86400", "seconds")
        if len(environment) > MOST_VARIABLES:
            raise Invalid(f"environment: at most {MOST_VARIABLES} variables", "environment")
        for variable, value in environment.items():
            if not _VARIABLE.match(variable) or variable.startswith(_REFUSED) or variable in ("PATH", "HOME"):
                raise Invalid(f"environment: {variable[:64]!r} can't be set for a project", "environment")
            if len(value) > LONGEST or "\0" in value:
                raise Invalid(f"environment: the value of {variable} is too long", "environment")
        self._change(tenant, name, {"setup": command, "seconds": seconds, "environment": dict(environment)})

    def set_pull_requests(self, tenant: str, name: str, on: bool) -> None:
        """Whether the project's tasks are offered as pull requests rather than merged. Raises Invalid, Unavailable."""
        self._change(tenant, name, {"pull_requests": on})

    def _change(self, tenant: str, name: str, fields: dict[str, Any]) -> None:
        at = _key(tenant, name)

        def change(doc: dict[str, Any]) -> dict[str, Any]:
            return {**doc, "sealed": self._seal(tenant, name, {**self._open(tenant, name, doc), **fields})}

        with contextlib.suppress(PreconditionFailed):
            _tried(lambda: create_json(self._store, at, {"name": name, "sealed": self._seal(tenant, name, {})}))
        _tried(lambda: update_json(self._store, at, change))

    def _read(self, tenant: str, name: str) -> dict[str, Any]:
        try:
            doc, _ = read_json(self._store, _key(tenant, name))
        except Absent:
            return {}
        except StoreError as error:
            raise Unavailable("the project's settings can't be read") from error
        return self._open(tenant, name, doc)

    def _seal(self, tenant: str, name: str, value: dict[str, Any]) -> str:
        return base64.b64encode(self._cipher.encrypt(orjson.dumps(value), _context(tenant, name))).decode()

    def _open(self, tenant: str, name: str, doc: Mapping[str, Any]) -> dict[str, Any]:
        try:
            found: dict[str, Any] = orjson.loads(self._cipher.decrypt(base64.b64decode(doc["sealed"]), _context(tenant, name)))
        except (Undecryptable, ValueError, KeyError) as error:
            raise Corrupt("the project's settings can't be read: is BYRE_SECRET_KEY another?", _key(tenant, name)) from error
        return found


def _tried(call: Callable[[], Any]) -> None:
    try:
        call()
    except StoreError as error:
        raise Unavailable("the project's settings can't be written") from error


def _key(tenant: str, name: str) -> str:
    if not keys.valid_tenant(tenant):
        raise Invalid("a tenant is 1 to 63 of a-z, 0-9 and -", "tenant")
    if not name.strip() or len(name) > 200:
        raise Invalid("name: must have 1 to 200 characters", "name")
    return keys.project_settings(tenant, name.strip())


def _context(tenant: str, name: str) -> bytes:
    return f"project-settings:{tenant}:{name.strip()}".encode()
