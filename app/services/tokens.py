"""Bearer tokens: made, looked up, revoked.

Rules:
- A stored token is known to us only as its SHA-256; the plaintext is shown once, when it is made.
- Looking one up costs at most one store read per token and `POSITIVE_SECONDS`, however many requests come at once; so a
  revocation made by another process is seen within that time (a caller that can't wait says so with `fresh`).
- Text that can't be one of our tokens never reaches the store.
- A browser's cookie is signed and names its token by its SHA-256: it is good as long as that one is, and no longer than its own term. It
  is no bearer token.
- Signed tokens (executor credential, inspection token) are not stored: tenant, object and expiry are in them, under a key
  derived from the deployment's secret for that one purpose.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any, NamedTuple

from itsdangerous import BadData, URLSafeSerializer

from app.core.errors import Forbidden, Invalid, Missing, Unauthorized, Unavailable
from app.core.principal import STORED_SCOPES, Principal, Scope
from app.store import keys
from app.store.contract import Absent, Store, StoreError
from app.store.puts import create_json, read_json, update_json

POSITIVE_SECONDS = 10.0
NEGATIVE_SECONDS = 2.0
LOAD_SECONDS = 30.0
"""How long a request waits for a lookup that another one began."""
EXECUTOR_SECONDS = 24 * 3600
"""Default life of an executor credential; the executor registers again after it."""
LOGIN_SECONDS = 7 * 24 * 3600
"""Life of a browser's cookie; after it a person logs in again."""
INSPECTION_SECONDS = 600
"""Default life of an inspection token: as long as the longest tool call."""

_STORED = re.compile(r"byre_[A-Za-z0-9_-]{43}\Z")
_SIGNED = re.compile(r"byre([xi])\.([A-Za-z0-9_.-]{1,1000})\Z")
_COOKIE = re.compile(r"[A-Za-z0-9_.-]{1,1000}\Z")
_KINDS: dict[str, Scope] = {"x": "executor", "i": "inspection"}
_REFUSED = "the token is not valid"


class Record(NamedTuple):
    """One stored token without its secret. Times are Unix seconds."""

    token_id: str
    tenant: str
    scope: Scope
    login: str | None
    name: str | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None


class Login(NamedTuple):
    """A browser's cookie: its value, the seconds for which it is good, and whom it stands for."""

    cookie: str
    seconds: int
    principal: Principal


Records = list[Record]
Hashes = list[str]


class _Entry(NamedTuple):
    principal: Principal | None
    expires_at: int | None
    loaded_at: float


class Tokens:
    """Tokens of one deployment over its object store. Safe for threads and greenlets.

    `clock` gives Unix seconds, `monotonic` seconds that never jump; `size` bounds each of the two caches.
    """

    def __init__(
        self,
        store: Store,
        secret_key: str,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        size: int = 10_000,
    ) -> None:
        self._store = store
        self._clock = clock
        self._monotonic = monotonic
        self._size = size
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._unknown: OrderedDict[str, _Entry] = OrderedDict()
        self._guard = threading.Lock()
        self._loading: dict[str, Future[_Entry]] = {}
        self._signers = {kind: _signer(secret_key, f"byre.token.{scope}.1") for kind, scope in _KINDS.items()}
        self._cookies = _signer(secret_key, "byre.cookie.1")

    # -- stored tokens

    def create(
        self, tenant: str, scope: Scope, login: str | None = None, expires_at: int | None = None, name: str | None = None
    ) -> tuple[str, str]:
        """Makes a token and returns (token id, plaintext). The plaintext can't be had again.

        Raises Invalid for a tenant or login that can't be, a scope that isn't stored, a user token without a login, or an expiry in the
        past.
        """
        if not keys.valid_tenant(tenant):
            raise Invalid(
                "a tenant's name has 1 to 63 lower-case letters, digits and `-`, and doesn't begin with `-`", "tenant"
            )
        if login:
            try:
                keys.user(tenant, login)
            except ValueError:
                raise Invalid(
                    "a login has at most 250 characters; those outside of ASCII count as three to twelve", "login"
                ) from None
            if not login.isprintable():
                raise Invalid("a login holds no control characters", "login")
        if scope not in STORED_SCOPES:
            raise Invalid(f"scope must be one of {', '.join(STORED_SCOPES)}", "scope")
        if scope == "user" and not login:
            raise Invalid("a user token needs a login", "login")
        now = int(self._clock())
        if expires_at is not None and expires_at <= now:
            raise Invalid("expires_at is in the past", "expires_at")
        plaintext = "byre_" + secrets.token_urlsafe(32)
        sha = _sha(plaintext)
        document = {
            "tenant": tenant, "scope": scope, "login": login, "name": name,
            "created_at": now, "expires_at": expires_at, "revoked_at": None,
        }  # fmt: skip
        create_json(self._store, keys.token(sha), document)
        return sha[:16], plaintext

    def list(self, tenant: str) -> Records:
        """Every token of a tenant, oldest first. Reads all tokens of the deployment: for administration, not for requests."""
        found = [record for sha in self._hashes("") if (record := self._record(sha)) is not None and record.tenant == tenant]
        return sorted(found, key=lambda record: (record.created_at, record.token_id))

    def revoke(self, token_id: str, tenant: str | None = None) -> None:
        """Ends a token for good; ending it again does nothing. Raises Missing if there is none (in `tenant`, if given)."""
        if not re.fullmatch(r"[0-9a-f]{16}", token_id):
            raise Missing("no such token")
        now = int(self._clock())
        for sha in self._hashes(token_id):
            record = self._record(sha)
            if record is None or (tenant is not None and record.tenant != tenant):
                continue
            update_json(self._store, keys.token(sha), lambda old: None if old.get("revoked_at") else {**old, "revoked_at": now})
            with self._guard:
                self._known.pop(sha, None)
            return
        raise Missing("no such token")

    # -- signed tokens

    def executor_credential(
        self, tenant: str, executor: str, *, login: str | None = None, seconds: int = EXECUTOR_SECONDS
    ) -> str:
        """A token that acts as one executor, and as nothing else, for `seconds`."""
        return self._sign("x", {"t": tenant, "e": executor, "l": login}, seconds)

    def inspection(self, tenant: str, session: str, *, seconds: int = INSPECTION_SECONDS) -> str:
        """A token that reads one session, and nothing else, for `seconds`: given to a tool for the time of one call."""
        return self._sign("i", {"t": tenant, "s": session}, seconds)

    # -- browsers

    def login(self, bearer: str) -> Login:
        """A cookie for a person's token. Raises Unauthorized, Unavailable; Forbidden for a token without a login."""
        if not _STORED.match(bearer):
            raise Unauthorized(_REFUSED)
        sha = _sha(bearer)
        principal, ends = self._stored(sha, POSITIVE_SECONDS)
        if principal.login is None:
            raise Forbidden("this needs a token with a login")
        now = int(self._clock())
        until = min(now + LOGIN_SECONDS, ends or now + LOGIN_SECONDS)
        signed = self._cookies.dumps({"h": sha, "x": until})
        return Login(signed.decode() if isinstance(signed, bytes) else signed, until - now, principal)

    def authenticate_cookie(self, value: str, *, fresh: float = POSITIVE_SECONDS) -> Principal:
        """The caller that a cookie stands for. Raises Unauthorized, also once its token is revoked; Unavailable."""
        try:
            payload = self._cookies.loads(value) if _COOKIE.match(value) else None
        except BadData:
            payload = None
        if payload is None or _past(payload["x"], self._clock()):
            raise Unauthorized(_REFUSED)
        return self._stored(payload["h"], fresh)[0]

    def live(self, token_id: str) -> bool:
        """Whether a stored token is still good. Raises Unavailable."""
        for sha in self._hashes(token_id):
            record = self._record(sha)
            if record is not None and record.revoked_at is None and not _past(record.expires_at, self._clock()):
                return True
        return False

    # -- looking up

    def authenticate(self, bearer: str, *, fresh: float = POSITIVE_SECONDS) -> Principal:
        """The caller that `bearer` stands for. What is known may be up to `fresh` seconds old.

        Raises Unauthorized if it isn't a token of ours, or no longer one; Unavailable if the store can't be asked.
        """
        if _STORED.match(bearer):
            return self._stored(_sha(bearer), fresh)[0]
        signed = _SIGNED.match(bearer)
        if signed is None:
            raise Unauthorized(_REFUSED)
        return self._verify(signed[1], signed[2])

    def _stored(self, sha: str, fresh: float) -> tuple[Principal, int | None]:
        """Whom a stored token stands for, and when it expires. Raises Unauthorized, Unavailable."""
        entry = self._cached(sha, fresh) or self._load_once(sha)
        if entry.principal is None or _past(entry.expires_at, self._clock()):
            raise Unauthorized(_REFUSED)
        return entry.principal, entry.expires_at

    def _cached(self, sha: str, fresh: float) -> _Entry | None:
        now = self._monotonic()
        with self._guard:
            entry = self._known.get(sha)
            if entry is not None:
                if now - entry.loaded_at >= min(fresh, POSITIVE_SECONDS):
                    return None
                self._known.move_to_end(sha)
                return entry
            entry = self._unknown.get(sha)
            return entry if entry is not None and now - entry.loaded_at < min(fresh, NEGATIVE_SECONDS) else None

    def _load_once(self, sha: str) -> _Entry:
        """Loads with one read however many ask at once: the others wait for that read and share what came of it."""
        with self._guard:
            future = self._loading.get(sha)
            mine = future is None
            if future is None:
                future = self._loading[sha] = Future()
        if not mine:
            try:
                return future.result(timeout=LOAD_SECONDS)
            except FutureTimeout as error:
                raise Unavailable("the object store doesn't answer") from error
        try:
            entry = self._load(sha)
        except BaseException as error:
            # A killed greenlet must not kill those that wait for it.
            future.set_exception(error if isinstance(error, Exception) else Unavailable("the lookup was cut short"))
            raise
        else:
            future.set_result(entry)
            return entry
        finally:
            with self._guard:
                self._loading.pop(sha, None)

    def _load(self, sha: str) -> _Entry:
        asked_at = self._monotonic()
        record = self._record(sha)
        live = record is not None and record.revoked_at is None
        principal = (
            Principal(record.tenant, record.scope, record.login, record.token_id) if record is not None and live else None
        )
        entry = _Entry(principal, record.expires_at if record is not None else None, asked_at)
        with self._guard:
            self._known.pop(sha, None)
            self._unknown.pop(sha, None)
            cache = self._known if principal is not None else self._unknown
            cache[sha] = entry
            while len(cache) > self._size:
                cache.popitem(last=False)
        return entry

    def _record(self, sha: str) -> Record | None:
        try:
            document, _ = read_json(self._store, keys.token(sha))
        except Absent:
            return None
        except StoreError as error:
            raise Unavailable("the object store can't be reached") from error
        return Record(
            sha[:16], document["tenant"], document["scope"], document.get("login"), document.get("name"),
            document["created_at"], document.get("expires_at"), document.get("revoked_at"),
        )  # fmt: skip

    def _hashes(self, start: str) -> Hashes:
        """The SHA-256 of every stored token that begins with `start`."""
        prefix = keys.tokens_prefix() + start
        found: Hashes = []
        after = ""
        while page := self._store.list(prefix, start_after=after):
            found += map(keys.last_part, page)
            after = page[-1]
        return found

    def _sign(self, kind: str, payload: dict[str, Any], seconds: int) -> str:
        document = {**payload, "x": int(self._clock()) + seconds}
        signed = self._signers[kind].dumps(document)
        return f"byre{kind}.{signed.decode() if isinstance(signed, bytes) else signed}"

    def _verify(self, kind: str, signed: str) -> Principal:
        try:
            payload = self._signers[kind].loads(signed)
        except BadData as error:
            raise Unauthorized(_REFUSED) from error
        if _past(payload["x"], self._clock()):
            raise Unauthorized(_REFUSED)
        token_id = hashlib.sha256(signed.encode()).hexdigest()[:16]
        return Principal(payload["t"], _KINDS[kind], payload.get("l"), token_id, payload.get("s"), payload.get("e"))


def _sha(plaintext: str) -> str:
    return hashlib.sha256(plaintext.encode()).hexdigest()


def _past(expires_at: int | None, now: float) -> bool:
    return expires_at is not None and now >= expires_at


def _signer(secret_key: str, purpose: str) -> URLSafeSerializer:
    return URLSafeSerializer(
        secret_key, salt=purpose, signer_kwargs={"key_derivation": "hmac", "digest_method": hashlib.sha256}
    )
