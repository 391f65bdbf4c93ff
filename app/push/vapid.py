"""The key by which push services know this deployment (VAPID, RFC 8292): made once, kept encrypted in the store, the same in every process.

Rules: subscriptions are bound to the key, so it is never replaced: one that can't be decrypted is an error that says so. Whoever comes
first makes it, by a create that only one can win. The private half never leaves this class.
"""

from __future__ import annotations

import base64
import threading
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.core.errors import Corrupt, Unavailable
from app.store import keys
from app.store.cipher import Cipher, Undecryptable
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, read_json

JWT_SECONDS = 12 * 3600
"""Life of a signature: at most 24 hours (RFC 8292 section 2)."""
_CONTEXT = b"push/vapid"


class Vapid:
    """The deployment's key. Reads or makes it at its first use; raises Unavailable, Corrupt."""

    def __init__(self, store: Store, cipher: Cipher, contact: str) -> None:
        self._store, self._cipher, self._contact = store, cipher, contact
        self._lock = threading.Lock()
        self._key: ec.EllipticCurvePrivateKey | None = None

    def public_key(self) -> str:
        """The public half: base64url of the uncompressed point, as PushManager.subscribe takes it."""
        point = (
            self._private().public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
        )
        return base64.urlsafe_b64encode(point).rstrip(b"=").decode()

    def authorization(self, audience: str, now: float) -> str:
        """The Authorization header for a push service; `audience` is the origin of its endpoints, `now` Unix seconds."""
        from py_vapid import Vapid02

        claims = {"aud": audience, "exp": int(now) + JWT_SECONDS, "sub": self._contact}
        # its check of `sub` refuses addresses that a deployment in a closed network has
        signed = Vapid02(private_key=self._private(), conf={"no-strict": True}).sign(claims)
        return str(signed["Authorization"])

    def _private(self) -> ec.EllipticCurvePrivateKey:
        with self._lock:
            if self._key is None:
                self._key = self._read() or self._make()
            return self._key

    def _read(self) -> ec.EllipticCurvePrivateKey | None:
        key = keys.vapid()
        try:
            doc, _ = read_json(self._store, key)
        except Absent:
            return None
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        return self._opened(doc, key)

    def _opened(self, doc: dict[str, Any], key: str) -> ec.EllipticCurvePrivateKey:
        try:
            plain = self._cipher.decrypt(base64.b64decode(doc["sealed"]), _CONTEXT)
        except (Undecryptable, ValueError) as error:
            raise Corrupt("the key for Web Push can't be decrypted: was BYRE_SECRET_KEY changed?", key) from error
        loaded = serialization.load_der_private_key(plain, None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise Corrupt("the key for Web Push is of another kind", key)
        return loaded

    def _make(self) -> ec.EllipticCurvePrivateKey:
        made = ec.generate_private_key(ec.SECP256R1())
        plain = made.private_bytes(serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        doc = {"sealed": base64.b64encode(self._cipher.encrypt(plain, _CONTEXT)).decode()}
        try:
            create_json(self._store, keys.vapid(), doc)
            return made
        except PreconditionFailed:
            found = self._read()
        if found is None:
            raise Unavailable("the key for Web Push can't be read")
        return found
