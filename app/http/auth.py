"""Who is calling, and may they: the only place where a request's credentials are looked at.

Rules: every operation goes through `admit`, which needs no exception for any route. A refusal never says whether the object
exists.
"""

from __future__ import annotations

import falcon

from app.core.errors import Forbidden, Unauthorized
from app.core.principal import Principal
from app.http.deps import Authenticator
from app.http.operations import Operation


def bearer(req: falcon.Request) -> str:
    """The token of the Authorization header. Raises Unauthorized if there is none, or another scheme."""
    given = req.env.get("HTTP_AUTHORIZATION")
    if not given:
        raise Unauthorized("a bearer token is needed")
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("the Authorization header must be: Bearer TOKEN")
    return str(token.strip())


def admit(operation: Operation, tokens: Authenticator, token: str, params: dict[str, str]) -> Principal:
    """The caller, who may call `operation` on the objects in `params`. Raises Unauthorized or Forbidden."""
    caller = tokens.authenticate(token)
    if caller.scope not in operation.scopes:
        raise Forbidden(f"a token of scope {caller.scope} can't call {operation.id}")
    if operation.login and caller.login is None:
        raise Forbidden("this needs a token with a login")
    bound = caller.session or caller.executor
    if bound is not None and params.get("id", "").lower() != bound:
        raise Forbidden("this token is for another object")
    return caller
