"""Blobs: images that people upload for a message, kept once per tenant under the SHA-256 of their bytes.

Rules: the type comes from the bytes, never from what the client says; the bytes are there before the record, so a record that exists can
be served; what is read is held against its name, so a damaged image is never served. Large results of tools lie beside them under other
ids, and aren't blobs of the contract: they are 404 here.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from typing import Any, NamedTuple

from app.core.errors import Corrupt, Invalid, Missing, TooLarge, Unavailable
from app.core.images import media_type
from app.core.principal import Principal
from app.services.writer import Clock
from app.store import keys
from app.store.contract import Absent, PreconditionFailed, Store, StoreError
from app.store.puts import create_json, put_once, read_json

LARGEST = 5 << 20
"""Bytes of one image (the contract: "At most 5 MiB")."""
_ID = re.compile(r"[0-9a-f]{64}\Z")
Document = dict[str, Any]


class Image(NamedTuple):
    """An image and its type as its bytes say it."""

    body: bytes
    media_type: str


class Blobs:
    """The images of all tenants."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def upload(self, principal: Principal, body: bytes) -> Document:
        """Stores an image; the same one again is the one that is there. Raises Invalid, TooLarge, Unavailable."""
        if len(body) > LARGEST:
            raise TooLarge(f"the image is over {LARGEST} bytes")
        kind = media_type(body)
        if kind is None:
            raise Invalid("body: is not a PNG, JPEG, GIF or WebP image", "body")
        name = hashlib.sha256(body).hexdigest()
        found = self._record(principal.tenant, name)
        if found is not None:
            return found
        doc = {
            "id": name,
            "content_type": kind,
            "created_by": principal.login or "",
            "created_at": self._clock.text(),
        }
        # they may be there already: put by somebody else, or in an upload that went no further
        with contextlib.suppress(PreconditionFailed):
            put_once(self._store, keys.blob(principal.tenant, name), body, if_none_match=True)
        try:
            create_json(self._store, keys.blob_record(principal.tenant, name), doc)
        except PreconditionFailed:
            return self._record(principal.tenant, name) or doc
        return doc

    def read(self, tenant: str, blob_id: str) -> Image:
        """The image's bytes and type. Raises Missing, Corrupt, Unavailable."""
        if not _ID.match(blob_id):
            raise Missing("no such blob")
        key = keys.blob(tenant, blob_id)
        try:
            body = self._store.get(key).body
        except Absent:
            raise Missing("no such blob") from None
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        kind = media_type(body)
        if kind is None or hashlib.sha256(body).hexdigest() != blob_id:
            raise Corrupt("a stored image is damaged", key)
        return Image(body, kind)

    def check(self, tenant: str, blob_ids: list[str], field: str = "images") -> None:
        """Raises Invalid, naming the field, if one of them isn't an uploaded image of the tenant; Unavailable."""
        for n, blob_id in enumerate(blob_ids):
            if not _ID.match(blob_id) or self._record(tenant, blob_id) is None:
                raise Invalid(f"{field}[{n}]: no such blob", f"{field}[{n}]")

    def _record(self, tenant: str, name: str) -> Document | None:
        try:
            doc, _ = read_json(self._store, keys.blob_record(tenant, name))
        except Absent:
            return None
        except StoreError as error:
            raise Unavailable("the object store can't be read") from error
        return {field: doc[field] for field in ("id", "content_type", "created_by", "created_at")}
