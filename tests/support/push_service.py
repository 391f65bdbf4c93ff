"""A stand-in for a push service, and for the browsers that are registered with it.

with push_service() as service:
    browser = service.browser()         # its `subscription` is the body of addPushSubscription
    service.answers = [500, 201]        # then 201; a callable gets the connection
    service.received                    # messages, decrypted (RFC 8291) and their signatures checked (RFC 8292)
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import http_ece
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from tests.tools.loopback import Peer, Server, serving


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Browser:
    """A subscription with its private half."""

    def __init__(self, endpoint: str) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.secret = os.urandom(16)
        point = self.key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
        self.subscription = {"endpoint": endpoint, "p256dh": encoded(point), "auth": encoded(self.secret)}

    def read(self, body: bytes) -> Any:
        """The message in an encrypted body."""
        return json.loads(http_ece.decrypt(body, private_key=self.key, auth_secret=self.secret, version="aes128gcm"))


class Received(NamedTuple):
    """A message as a browser got it. `claims` are those of the sender's signature, `key` whose it is."""

    path: str
    headers: dict[str, str]
    message: Any
    claims: dict[str, Any]
    key: str
    answered: int


class PushService:
    """Its browsers by the path of their endpoints."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self.refused: list[str] = []
        self.answers: list[int | Callable[[Peer], None]] = []
        self.headers: dict[str, str] = {}
        self._browsers: dict[str, Browser] = {}
        self._lock = threading.Lock()
        self.server: Server | None = None

    def browser(self) -> Browser:
        """A browser that has just subscribed."""
        assert self.server
        path = f"/push/{secrets.token_urlsafe(16)}"
        made = self._browsers[path] = Browser(self.server.url + path)
        return made

    def of(self, browser: Browser) -> list[Received]:
        """What came for one browser."""
        path = browser.subscription["endpoint"].removeprefix(self.server.url if self.server else "")
        return [each for each in self.received if each.path == path]

    def __call__(self, peer: Peer) -> None:
        try:
            path, browser = peer.seen.path, self._browsers[peer.seen.path]
            claims, key = self._sender(peer.seen.headers["authorization"])
            message = browser.read(peer.seen.body)
            assert peer.seen.headers["content-encoding"] == "aes128gcm"
            assert len(peer.seen.body) <= 4096
        except Exception as error:  # noqa: BLE001 - a push service refuses; the test sees why
            self.refused.append(repr(error))
            peer.answer(400)
            return
        with self._lock:
            answer = self.answers.pop(0) if self.answers else 201
            status = answer if isinstance(answer, int) else 0
            self.received.append(Received(path, peer.seen.headers, message, claims, key, status))
        if isinstance(answer, int):
            peer.answer(answer, **self.headers)
        else:
            answer(peer)

    def _sender(self, authorization: str) -> tuple[dict[str, Any], str]:
        """Claims and key of a VAPID header, if its signature is good and for us."""
        scheme, _, rest = authorization.partition(" ")
        assert scheme == "vapid"
        parts = dict(part.strip().split("=", 1) for part in rest.split(","))
        signed, _, signature = parts["t"].rpartition(".")
        raw = decoded(signature)
        assert len(raw) == 64
        der = encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), decoded(parts["k"]))
        key.verify(der, signed.encode(), ec.ECDSA(hashes.SHA256()))
        header, claims = (json.loads(decoded(part)) for part in signed.split("."))
        assert header["alg"] == "ES256"
        assert self.server
        assert claims["aud"] == self.server.url
        assert time.time() < claims["exp"] <= time.time() + 24 * 3600
        return claims, parts["k"]


@contextmanager
def push_service() -> Iterator[PushService]:
    """One for the time of the block, over plain http on loopback."""
    service = PushService()
    with serving(service) as server:
        service.server = server
        yield service
