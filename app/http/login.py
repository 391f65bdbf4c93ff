"""Logging in and out with a browser: a token is exchanged for a cookie that pages can't read.

Rules: the cookie is HttpOnly and SameSite=Strict, `Secure` where the deployment is reached over https, and lives no longer than its
token. JSON is answered with JSON, a form with a redirect. A page of another site can neither log somebody in nor out.
"""

from __future__ import annotations

import urllib.parse
from typing import Any

import falcon
import orjson

from app.core.errors import Forbidden, Invalid, Unauthorized
from app.http.auth import COOKIE
from app.http.deps import Deps
from app.http.origin import may_log_in, secure
from app.http.requests import JSON, Request, UnsupportedMediaType, read_body

FORM = "application/x-www-form-urlencoded"
LONGEST = 8192
"""Bytes of a login's body: a token is some fifty."""
FIELDS = 20
AFTER = "/"
"""Where a form leads to. Never from the request: an address of somebody else's choice could be anywhere."""


class _Browser:
    def __init__(self, deps: Deps) -> None:
        self._tokens, self._public_url = deps.tokens, deps.public_url

    def _check(self, req: Request) -> None:
        env = req.env
        origin, site = env.get("HTTP_ORIGIN"), env.get("HTTP_SEC_FETCH_SITE")
        if not may_log_in(origin, site, env.get("HTTP_HOST", ""), self._public_url):
            raise Forbidden("this can only be done from a page of this server")


class Login(_Browser):
    """`POST /login`."""

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        self._check(req)
        token, form = _token(req)
        given = self._tokens.login(token)
        https = secure(self._public_url)
        resp.set_cookie(COOKIE, given.cookie, max_age=given.seconds, path="/", secure=https, http_only=True, same_site="Strict")
        resp.set_header("Cache-Control", "no-store")
        if form:
            resp.status = falcon.HTTP_303
            resp.location = AFTER
            return
        resp.content_type = JSON
        resp.data = orjson.dumps({"login": given.principal.login, "expires_in": given.seconds})


class Logout(_Browser):
    """`POST /logout`: the browser forgets the cookie. Revoking the token ends it everywhere."""

    def on_post(self, req: Request, resp: falcon.Response) -> None:
        self._check(req)
        resp.unset_cookie(COOKIE, path="/", same_site="Strict")
        resp.set_header("Cache-Control", "no-store")
        if (req.content_type or "").startswith(FORM):
            resp.status = falcon.HTTP_303
            resp.location = AFTER
        else:
            resp.status = falcon.HTTP_204


def add_routes(app: falcon.App[Any, Any], deps: Deps) -> None:
    """Adds `/login` and `/logout`."""
    app.add_route("/login", Login(deps))
    app.add_route("/logout", Logout(deps))


def _token(req: Request) -> tuple[str, bool]:
    """The token that the body has, and whether it is a form's. Raises Invalid, TooLarge, Unauthorized."""
    raw = read_body(req, LONGEST)
    kind = (req.content_type or "").partition(";")[0].strip().lower()
    if kind == FORM:
        try:
            given: Any = urllib.parse.parse_qs(raw.decode("latin-1"), max_num_fields=FIELDS).get("token", [""])[0]
        except ValueError:
            raise Invalid("the form has too many fields") from None
    elif kind == JSON:
        try:
            document = orjson.loads(raw)
        except orjson.JSONDecodeError:
            raise Invalid("the body is not JSON") from None
        given = document.get("token") if isinstance(document, dict) else None
    else:
        raise UnsupportedMediaType(f"the content type must be {JSON} or {FORM}")
    if not isinstance(given, str):
        raise Invalid("token: must be text", "token")
    if not given.strip():
        raise Unauthorized("a token is needed")
    return given.strip(), kind == FORM
