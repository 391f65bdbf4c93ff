"""Who is calling: the outcome of authentication, and all that authorisation may look at.

Rules: a principal belongs to exactly one tenant. It never holds the token itself, only its id, so it may be logged. The scope
says what kind of token it was; `session` and `executor` are set only where the token is bound to one of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["management", "user", "executor", "inspection"]

STORED_SCOPES: tuple[Scope, ...] = ("management", "user")
"""Scopes of tokens that are kept in the store and can be revoked; the other two are signed and short-lived."""


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller. `login` is the person (management tokens may carry one), `token_id` names the token in logs and lists."""

    tenant: str
    scope: Scope
    login: str | None
    token_id: str
    session: str | None = None
    executor: str | None = None
