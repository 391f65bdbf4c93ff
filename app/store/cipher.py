"""Encryption of what is stored: AES-256-GCM under keys that are derived from the deployment's secret, one per purpose.

Rules: the secret itself encrypts nothing; `context` says what is encrypted and where (a key of the store, say) and is checked,
so that a ciphertext can't be moved to another place; a ciphertext names its key, so that the secret can be changed: the new
one first, the old ones still decrypt.

Layout of a ciphertext: 1 byte version (1), 4 bytes key id, 12 bytes nonce, then the encrypted bytes with a 16-byte tag.
Sizes after NIST SP 800-38D: with random nonces a key serves 2^32 messages at most.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION = b"\x01"
KEY_ID_BYTES = 4
NONCE_BYTES = 12
TAG_BYTES = 16
OVERHEAD = len(VERSION) + KEY_ID_BYTES + NONCE_BYTES + TAG_BYTES  # bytes a ciphertext is longer than its plaintext
_HEADER = len(VERSION) + KEY_ID_BYTES


class Undecryptable(Exception):
    """Not made by us, damaged, of another context, or under a secret that this process doesn't have."""


class Cipher:
    """Encrypts under `secret_key`, decrypts also what an earlier secret (`previous`) encrypted. `purpose` separates keys."""

    def __init__(self, secret_key: str, *, previous: Sequence[str] = (), purpose: str = "objects") -> None:
        if not secret_key or not all(previous):
            raise ValueError("the secret key is empty")
        pairs = [_derive(secret, purpose) for secret in (secret_key, *previous)]
        self._key_id = pairs[0][0]
        self._keys = {key_id: AESGCM(key) for key_id, key in reversed(pairs)}

    def encrypt(self, plain: bytes, context: bytes) -> bytes:
        """`plain` encrypted; `OVERHEAD` bytes longer, and different each time."""
        header, nonce = VERSION + self._key_id, os.urandom(NONCE_BYTES)
        return header + nonce + self._keys[self._key_id].encrypt(nonce, plain, header + context)

    def decrypt(self, sealed: bytes, context: bytes) -> bytes:
        """What was encrypted for `context`. Raises Undecryptable."""
        header, nonce, rest = sealed[:_HEADER], sealed[_HEADER : _HEADER + NONCE_BYTES], sealed[_HEADER + NONCE_BYTES :]
        key = self._keys.get(header[len(VERSION) :])
        if len(sealed) < OVERHEAD or header[: len(VERSION)] != VERSION or key is None:
            raise Undecryptable("not encrypted under a secret key that this deployment has")
        try:
            return key.decrypt(nonce, rest, header + context)
        except InvalidTag:
            raise Undecryptable("damaged, or encrypted for something else") from None


def _derive(secret: str, purpose: str) -> tuple[bytes, bytes]:
    """Key id and key for one purpose."""
    key = HKDF(SHA256(), length=32, salt=None, info=b"byre/" + purpose.encode()).derive(secret.encode())
    return hashlib.sha256(b"byre/key-id/" + key).digest()[:KEY_ID_BYTES], key
