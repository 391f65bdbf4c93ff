"""Browsers that are told of inbox items: subscriptions of users.

A subscription is one object under the hash of its endpoint, so an endpoint belongs to one user, whoever registered it last. A marker
below the user says where to look; it is put first and may lead to nothing, or to a device that is another's by now.

Rules: endpoint and keys are encrypted, and never shown again; a subscription ends with the token that registered it, so that whoever is
shut out isn't told any more; a user has `MOST` of them, and the oldest makes room.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from cryptography.hazmat.primitives.asymmetric import ec

from app.core.errors import Corrupt, Invalid, Unavailable
from app.core.principal import Principal
from app.outgoing.client import Outgoing
from app.outgoing.errors import Refused
from app.push.sender import Device
from app.services.writer import Clock
from app.store import keys
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json, update_json

MOST = 20
READERS = 8
AUTH_BYTES = 16
"""RFC 8291 section 3.2."""
POINT_BYTES = 65
Document = dict[str, Any]
Devices = list[Device]


class PushDevices:
    """The subscriptions of all users. `live` says whether a token (by its id) is still good."""

    def __init__(self, store: Store, cipher: Cipher, outgoing: Outgoing, live: Callable[[str], bool], clock: Clock) -> None:
        self._store, self._cipher, self._outgoing, self._live, self._clock = store, cipher, outgoing, live, clock

    def add(self, principal: Principal, body: Document) -> None:
        """Registers a subscription for the caller. Raises Invalid, Unavailable."""
        endpoint = body["endpoint"]
        try:
            self._outgoing.check(endpoint)
        except Refused as error:
            raise Invalid(f"endpoint: {error}", "endpoint") from None
        _check_key(body["p256dh"])
        if len(_decoded(body["auth"], "auth")) != AUTH_BYTES:
            raise Invalid(f"auth: must be {AUTH_BYTES} bytes", "auth")
        sha, login = hashlib.sha256(endpoint.encode()).hexdigest(), principal.login or ""
        secret = orjson.dumps([endpoint, body["p256dh"], body["auth"]])
        doc = {
            "tenant": principal.tenant,
            "login": login,
            "token_id": principal.token_id,
            "sealed": base64.b64encode(self._cipher.encrypt(secret, _context(sha))).decode(),
            "created_at": self._clock.text(),
        }

        def change(old: Document) -> Document:
            same = (old["tenant"], old["login"]) == (principal.tenant, login)
            return {**doc, "created_at": old["created_at"]} if same else doc

        self._store.put(keys.push_marker(principal.tenant, login, sha), b"{}")
        try:
            update_json(self._store, keys.push_device(sha), change)
        except Absent:
            try:
                create_json(self._store, keys.push_device(sha), doc)
            except PreconditionFailed:
                update_json(self._store, keys.push_device(sha), change)
        self._make_room(principal.tenant, login, sha)

    def remove(self, principal: Principal, endpoint: str) -> None:
        """Ends the caller's subscription; nothing happens if the endpoint isn't theirs."""
        sha = hashlib.sha256(endpoint.encode()).hexdigest()
        self._end(principal.tenant, principal.login or "", sha)

    def drop(self, device: Device) -> None:
        """Ends a subscription whose push service doesn't know it any more, unless it was registered anew since."""
        self._end(device.tenant, device.login, device.id, device)

    def of_tenant(self, tenant: str) -> Devices:
        """Every device of the tenant's users, those whose token has ended left out. Raises Unavailable."""
        return self._found(tenant, list(self._listed(keys.push_markers_prefix(tenant))))

    def any(self, tenant: str) -> bool:
        """Whether somebody of the tenant may have a device. Raises Unavailable."""
        try:
            return bool(self._store.list(keys.push_markers_prefix(tenant), limit=1))
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error

    def get(self, tenant: str, login: str, sha: str) -> Device | None:
        """The device, if it is still that user's and may be told. Raises Unavailable."""
        try:
            doc, _ = read_json(self._store, keys.push_device(sha))
        except Absent:
            return None
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        if (doc["tenant"], doc["login"]) != (tenant, login):
            return None
        if not self._live(doc["token_id"]):
            self._end(tenant, login, sha)
            return None
        return self._opened(doc, sha)

    def _found(self, tenant: str, markers: list[str]) -> Devices:
        def one(marker: str) -> Device | None:
            login, sha = keys.parse_push_marker(marker)
            device = self.get(tenant, login, sha)
            if device is None:
                self._store.delete(marker)
            return device

        if not markers:
            return []
        with ThreadPoolExecutor(min(READERS, len(markers)), thread_name_prefix="devices") as pool:
            return [device for device in pool.map(one, markers) if device is not None]

    def _make_room(self, tenant: str, login: str, newest: str) -> None:
        markers = list(self._listed(keys.push_markers_prefix(tenant, login)))
        if len(markers) <= MOST:
            return
        others = [device for device in self._found(tenant, markers) if device.id != newest]
        for device in sorted(others, key=lambda device: device.created_at)[: len(others) + 1 - MOST]:
            self._end(tenant, login, device.id)

    def _end(self, tenant: str, login: str, sha: str, known: Device | None = None) -> None:
        """Whoever registers the endpoint meanwhile keeps it: what is left is changed by CAS, never deleted."""

        def change(doc: Document) -> Document | None:
            if (doc["tenant"], doc["login"]) != (tenant, login) or (known is not None and self._opened(doc, sha) != known):
                return None
            return {"tenant": None, "login": None, "token_id": "", "sealed": "", "created_at": doc["created_at"]}

        try:
            doc, _ = update_json(self._store, keys.push_device(sha), change)
        except Absent:
            return
        if (doc["tenant"], doc["login"]) != (tenant, login):
            self._store.delete(keys.push_marker(tenant, login, sha))

    def _opened(self, doc: Document, sha: str) -> Device:
        try:
            plain = self._cipher.decrypt(base64.b64decode(doc["sealed"]), _context(sha))
        except (Undecryptable, ValueError) as error:
            raise Corrupt("a push subscription can't be decrypted", keys.push_device(sha)) from error
        endpoint, p256dh, auth = orjson.loads(plain)
        return Device(sha, doc["tenant"], doc["login"], doc["token_id"], endpoint, p256dh, auth, doc["created_at"])

    def _listed(self, prefix: str) -> Iterator[str]:
        after = ""
        try:
            while page := self._store.list(prefix, start_after=after):
                yield from page
                after = page[-1]
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error


def _context(sha: str) -> bytes:
    return f"push/devices/{sha}".encode()


def _check_key(text: str) -> None:
    point = _decoded(text, "p256dh")
    try:
        if len(point) != POINT_BYTES:
            raise ValueError
        ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
    except ValueError:
        raise Invalid("p256dh: must be an uncompressed point of P-256", "p256dh") from None


def _decoded(text: str, field: str) -> bytes:
    try:
        if len(text) > 200:
            raise ValueError
        return base64.b64decode(text.rstrip("=") + "=" * (-len(text.rstrip("=")) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Invalid(f"{field}: must be base64url", field) from None
