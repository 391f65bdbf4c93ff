"""Who is calling, and may they: the only place where a request's credentials are looked at.

Rules: every operation goes through `admit`, which needs no exception for any route. A token in `Authorization` counts before a cookie. The
cookie that a login sets stands for its token on byre's operations only, and what changes something must come from a page of this server.
A refusal never says whether the object exists.
"""

from __future__ import annotations

from typing import NamedTuple

import falcon

from app.core.errors import Forbidden, Unauthorized
from app.core.principal import Principal
from app.http.deps import Authenticator
from app.http.operations import Operation
from app.http.origin import same_origin

COOKIE = "byre_session"
_SAFE = ("GET", "HEAD")


class Credential(NamedTuple):
    """What a request shows for its caller. `cookie`: a browser has sent it by itself."""

    text: str
    cookie: bool = False


def bearer(req: falcon.Request) -> str:
    """The token of the Authorization header. Raises Unauthorized if there is none, or another scheme."""
    given = req.env.get("HTTP_AUTHORIZATION")
    if not given:
        raise Unauthorized("a bearer token is needed")
    scheme, _, token = given.partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("the Authorization header must be: Bearer TOKEN")
    return str(token.strip())


def cookie(req: falcon.Request) -> str | None:
    """The value of the login's cookie; None if there is none, or an empty one."""
    values = req.get_cookie_values(COOKIE) if "HTTP_COOKIE" in req.env else None
    return (values[0] or None) if values else None


def credential(operation: Operation, req: falcon.Request) -> Credential:
    """What `req` shows. Raises Unauthorized."""
    if operation.login and "HTTP_AUTHORIZATION" not in req.env:
        given = cookie(req)
        if given is not None:
            return Credential(given, True)
    return Credential(bearer(req))


def admit(
    operation: Operation, tokens: Authenticator, shown: Credential, req: falcon.Request, params: dict[str, str], public_url: str
) -> Principal:
    """The caller, who may call `operation` on the objects in `params`. Raises Unauthorized or Forbidden."""
    caller = tokens.authenticate_cookie(shown.text) if shown.cookie else tokens.authenticate(shown.text)
    if shown.cookie and req.method not in _SAFE and not from_us(req, public_url):
        raise Forbidden("with a cookie this can only be done from a page of this server")
    if caller.scope not in operation.scopes:
        raise Forbidden(f"a token of scope {caller.scope} can't call {operation.id}")
    if operation.login and caller.login is None:
        raise Forbidden("this needs a token with a login")
    bound = caller.session or caller.executor
    if bound is not None and params.get("id", "").lower() != bound:
        raise Forbidden("this token is for another object")
    return caller


def from_us(req: falcon.Request, public_url: str) -> bool:
    """Whether a page of ours has sent the request."""
    env = req.env
    return same_origin(env.get("HTTP_ORIGIN"), env.get("HTTP_SEC_FETCH_SITE"), env.get("HTTP_HOST", ""), public_url)


def still(tokens: Authenticator, shown: Credential, fresh: float) -> None:
    """Raises Unauthorized if `shown` is no longer good; what is known may be `fresh` seconds old."""
    if shown.cookie:
        tokens.authenticate_cookie(shown.text, fresh=fresh)
    else:
        tokens.authenticate(shown.text, fresh=fresh)
