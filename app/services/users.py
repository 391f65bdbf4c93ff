"""Users: logins of a tenant with a git identity and notification preferences. A user exists as soon as a token names its login."""

from __future__ import annotations

import re
from typing import Any

from app.core.errors import Invalid, Missing
from app.core.principal import Principal
from app.services.entities import Entities
from app.store import keys

DEFAULT_PREFS = {"blocking_questions": True, "questions": False, "reports": False, "errors": False, "rate_limits": False}
LONGEST = 200
_BAD = re.compile(r"[\x00-\x1f\x7f<>]")
_EMAIL = re.compile(r"[^@\s<>]+@[^@\s<>]+\Z")
Document = dict[str, Any]


class Users:
    """All users of a deployment."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities

    def get(self, tenant: str, login: str) -> Document:
        """The user; one who never changed anything has the defaults."""
        try:
            return self._entities.get(tenant, keys.user(tenant, login), "user")
        except Missing:
            return _new(login)

    def me(self, principal: Principal) -> Document:
        """The caller."""
        return _shown(self.get(principal.tenant, principal.login or ""))

    def update(self, principal: Principal, body: Document) -> Document:
        """Sets the caller's git identity. Both parts may be empty (none), or both must be what git takes."""
        name, email = body["git_name"].strip(), body["git_email"].strip()
        for field, value in (("git_name", name), ("git_email", email)):
            if _BAD.search(value) or len(value) > LONGEST:
                raise Invalid(f"{field}: no control characters, < or >, and at most {LONGEST} characters", field)
        if bool(name) != bool(email):
            raise Invalid("git_name, git_email: give both or neither", "git_email" if name else "git_name")
        if email and not _EMAIL.match(email):
            raise Invalid("git_email: is not an address", "git_email")
        return self._change(principal, {"git_name": name, "git_email": email})

    def update_prefs(self, principal: Principal, body: Document) -> Document:
        """Sets which inbox items notify the caller."""
        return self._change(principal, {"notification_prefs": {name: body[name] for name in DEFAULT_PREFS}})

    def _change(self, principal: Principal, fields: Document) -> Document:
        login = principal.login or ""
        key = keys.user(principal.tenant, login)
        return _shown(self._entities.ensure(principal.tenant, key, _new(login), lambda doc: ({**doc, **fields}, ())))


def _new(login: str) -> Document:
    return {"login": login, "display_name": login, "git_name": "", "git_email": "", "notification_prefs": dict(DEFAULT_PREFS)}


def _shown(doc: Document) -> Document:
    return {name: doc[name] for name in ("login", "display_name", "git_name", "git_email", "notification_prefs")}
