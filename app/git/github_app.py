"""Tokens of a GitHub App's installation: what git is given as a password.

A token is asked for with a JSON Web Token (RFC 7519) that the app's private key signs (RS256, RFC 7518 section 3.3), is good for an hour,
and is kept in memory until shortly before its end.

Rules: it goes through the guarded client; neither key nor token is in any message.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any, Protocol

import orjson
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from app.core.errors import Invalid, Unavailable

_MARGIN = 300.0  # Seconds before its end in which a token is no longer given out.
_LIFE = 540  # Seconds of the signed request; GitHub allows ten minutes.
_MOST = 256
Post = Callable[[str, dict[str, str]], tuple[int, bytes]]
"""Sends an empty POST to (address, headers); gives status and body. Raises Unavailable."""


class AppLike(Protocol):
    """The ids, key and API address of an installed app."""

    @property
    def id(self) -> str: ...
    @property
    def installation(self) -> str: ...
    @property
    def private_key(self) -> str: ...
    @property
    def api(self) -> str: ...


class Tokens:
    """The installation tokens of one process."""

    def __init__(self, post: Post, clock: Callable[[], float] = time.time) -> None:
        self._post, self._clock = post, clock
        self._known: dict[tuple[str, str, str], tuple[str, float]] = {}
        self._lock = threading.Lock()

    def token(self, app: AppLike) -> str:
        """A token that is good for some minutes at least. Raises Invalid if the app is refused, Unavailable."""
        name = (app.api, app.id, app.installation)
        with self._lock:
            found = self._known.get(name)
        if found and found[1] - _MARGIN > self._clock():
            return found[0]
        headers = {"Authorization": f"Bearer {signed(app, int(self._clock()))}", "Accept": "application/vnd.github+json"}
        status, body = self._post(f"{app.api.rstrip('/')}/app/installations/{app.installation}/access_tokens", headers)
        if status in (401, 403, 404):
            raise Invalid("repo_path: access is denied: GitHub refuses the project's app", "repo_path")
        try:
            answer: dict[str, Any] = orjson.loads(body)
            token, end = str(answer["token"]), datetime.fromisoformat(answer["expires_at"]).timestamp()
        except (ValueError, KeyError, TypeError):
            raise Unavailable(f"GitHub gave no token for the project's app (status {status})") from None
        with self._lock:
            if len(self._known) >= _MOST:
                self._known.clear()
            self._known[name] = (token, end)
        return token


def signed(app: AppLike, now: int) -> str:
    """The JSON Web Token that asks in the app's name; `now` in Unix seconds. Raises Invalid for a key that can't sign."""
    try:
        key = load_pem_private_key(app.private_key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Invalid("the key of the project's GitHub App can't be read", "key") from None
    if not isinstance(key, RSAPrivateKey):
        raise Invalid("the key of a GitHub App is an RSA key", "key")
    claims = {"iat": now - 60, "exp": now + _LIFE, "iss": app.id}
    text = b".".join(_coded(orjson.dumps(part)) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
    return (text + b"." + _coded(key.sign(text, PKCS1v15(), SHA256()))).decode()


def _coded(raw: bytes) -> bytes:
    return base64.urlsafe_b64encode(raw).rstrip(b"=")
