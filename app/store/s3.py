"""A bucket as an object store, through boto3.

Rules: boto repeats nothing by itself (it would report our own successful conditional PUT as a 412 when the first answer was
lost); reads are repeated here, bounded; writes are repeated by `puts.put_once`, which knows how. Every request has a connect
and a read timeout. A 200 without an etag is not an answer. Checksums of boto's own making are off, for not every S3-compatible
store has them; a Content-MD5, which they all have, guards each body on its way. One client serves all threads or greenlets of
a process.
"""

from __future__ import annotations

import base64
import hashlib
import random
import secrets
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import boto3.session
import urllib3.exceptions
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from app.store.contract import (
    Absent,
    Got,
    Head,
    Keys,
    PreconditionFailed,
    Raced,
    StoreError,
    check_condition,
    check_folder,
    check_key,
    check_prefix,
)

PAGE = 1000  # keys in one answer, the most that S3 gives (API reference, ListObjectsV2)
READ_TRIES = 4
READ_SECONDS = 10.0  # no new attempt of a read after that
FIRST_WAIT, LONGEST_WAIT = 0.05, 1.0  # seconds between attempts of a read
PIECE = 1 << 20  # bytes read at a time
ONE_PUT_BYTES = 64 << 20  # larger files go up in parts
PUT_ID = "byre-put-id"  # name in the object's metadata

_NEVER_SENT = (ConnectTimeoutError, EndpointConnectionError, CredentialRetrievalError)
_LASTING = (NoCredentialsError, PartialCredentialsError, ParamValidationError)
_PASSING_4XX = {"RequestTimeout", "RequestTimeTooSkewed", "ExpiredToken", "BadDigest", "TooManyRequests", "Throttling"}
_TRANSPORT = (BotoCoreError, Boto3Error, urllib3.exceptions.HTTPError, OSError)

T = TypeVar("T")


def connect(
    *,
    endpoint: str | None = None,
    region: str | None = None,
    access_key: str | None = None,
    secret_key: str | None = None,
    connect_timeout: float = 3,
    read_timeout: float = 8,
    connections: int = 50,
) -> Any:
    """A boto client as `S3Store` needs it; making one takes a good part of a second, so share it. Timeouts in seconds.

    Credentials and region come from boto's own chain unless given. With an `endpoint` (an S3-compatible store) addressing is
    path-style.
    """
    session = boto3.session.Session(
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=region or ("us-east-1" if endpoint else None),
    )
    config = Config(
        connect_timeout=connect_timeout,
        read_timeout=read_timeout,
        max_pool_connections=connections,
        tcp_keepalive=True,
        retries={"total_max_attempts": 1, "mode": "standard"},
        s3={"addressing_style": "path" if endpoint else "auto"},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    client: Any = session.client("s3", endpoint_url=endpoint, config=config)
    client.meta.events.register_last("before-call.s3", _expect_nothing)
    return client


def _expect_nothing(params: dict[str, Any], **_: object) -> None:
    """boto asks before it sends any body, however small ("Expect: 100-continue"): a round trip that we can spare."""
    params["headers"].pop("Expect", None)


class S3Store:
    """A `Store` in `bucket`, below `prefix` ("" or a path without slashes at its ends). `client` is of `connect`."""

    def __init__(self, client: Any, bucket: str, prefix: str = "") -> None:
        self._client = client
        self._bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""

    def get(self, key: str) -> Got:
        def once() -> Got:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(key))
            with closing(answer["Body"]) as stream:
                body = stream.read()
            return Got(_whole(key, body, answer), _etag(key, answer))

        return self._reading(key, once)

    def head(self, key: str) -> Head:
        def once() -> Head:
            answer = self._client.head_object(Bucket=self._bucket, Key=self._key(key))
            return Head(_etag(key, answer), answer["ContentLength"], answer.get("Metadata", {}).get(PUT_ID))

        return self._reading(key, once)

    def put(
        self, key: str, body: bytes, *, if_none_match: bool = False, if_match: str | None = None, put_id: str | None = None
    ) -> str:
        check_condition(if_none_match, if_match)
        request: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key(key), "Body": body, "ContentMD5": _md5(body)}
        if if_none_match:
            request["IfNoneMatch"] = "*"
        if if_match is not None:
            request["IfMatch"] = if_match
        if put_id is not None:
            request["Metadata"] = {PUT_ID: put_id}
        try:
            return _etag(key, self._client.put_object(**request))
        except ClientError as error:
            code, status = _code(error)
            if status == 412 or (code == "NoSuchKey" and if_match is not None):
                raise PreconditionFailed(key) from None
            if status == 409:
                raise Raced(key) from None
            raise _failure(key, error) from error
        except _TRANSPORT as error:
            raise _failure(key, error) from error

    def list(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        check_prefix(prefix)
        found: Keys = []
        after = start_after
        while len(found) < limit:
            answer = self._page(prefix, after and self._prefix + after, min(PAGE, limit - len(found)))
            keys = [entry["Key"].removeprefix(self._prefix) for entry in answer.get("Contents", ())]
            found += keys
            if not answer.get("IsTruncated") or not keys:
                break
            after = keys[-1]
        return found

    def list_dirs(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Keys:
        check_folder(prefix)
        found: Keys = []
        after = f"{self._prefix}{prefix}{start_after}0" if start_after else ""  # "0" is the character after "/"
        token: str | None = None
        while len(found) < limit:
            answer = self._page(prefix, after, PAGE, Delimiter="/", **({"ContinuationToken": token} if token else {}))
            folders = (entry["Prefix"] for entry in answer.get("CommonPrefixes", ()))
            found += [folder.removeprefix(self._prefix + prefix)[:-1] for folder in folders]
            token = answer.get("NextContinuationToken")
            if not answer.get("IsTruncated") or not token:
                break
        return found[:limit]

    def delete(self, key: str) -> None:
        self._reading(key, lambda: self._client.delete_object(Bucket=self._bucket, Key=self._key(key)))

    def get_file(self, key: str, path: Path) -> str:
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.partial")

        def once() -> str:
            answer = self._client.get_object(Bucket=self._bucket, Key=self._key(key))
            with closing(answer["Body"]) as stream, partial.open("wb") as target:
                for piece in stream.iter_chunks(PIECE):
                    target.write(piece)
                size = target.tell()
            if size != answer["ContentLength"]:
                raise StoreError(f"{key}: the answer was cut off")
            return _etag(key, answer)

        try:
            etag = self._reading(key, once)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        return etag

    def put_file(self, key: str, path: Path) -> str:
        if path.stat().st_size <= ONE_PUT_BYTES:
            with path.open("rb") as body:

                def once() -> str:
                    body.seek(0)
                    return _etag(key, self._client.put_object(Bucket=self._bucket, Key=self._key(key), Body=body))

                return self._reading(key, once)
        config = TransferConfig(multipart_threshold=ONE_PUT_BYTES, multipart_chunksize=16 << 20, use_threads=False)
        self._reading(key, lambda: self._client.upload_file(str(path), self._bucket, self._key(key), Config=config))
        return self.head(key).etag

    def close(self) -> None:
        self._client.close()

    def _key(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _page(self, prefix: str, after: str, limit: int, **more: str) -> dict[str, Any]:
        request = {"Bucket": self._bucket, "Prefix": self._prefix + prefix, "MaxKeys": limit, **more}
        if after:
            request["StartAfter"] = after
        return self._reading(prefix, lambda: self._client.list_objects_v2(**request))

    def _reading(self, key: str, once: Callable[[], T]) -> T:
        """What `once` gives, repeated a bounded number of times; only for what may be done twice. Raises Absent, StoreError."""
        started = time.monotonic()
        wait = FIRST_WAIT
        for left in reversed(range(READ_TRIES)):
            try:
                return once()
            except StoreError as error:
                failure = error
            except ClientError as error:
                if _code(error)[0] in ("NoSuchKey", "404"):
                    raise Absent(key) from None
                failure = _failure(key, error)
            except _TRANSPORT as error:
                failure = _failure(key, error)
            pause = wait * (0.5 + random.random())  # noqa: S311 - spreads attempts, guards nothing
            if failure.lasting or not left or time.monotonic() - started + pause > READ_SECONDS:
                raise failure
            time.sleep(pause)
            wait = min(wait * 2, LONGEST_WAIT)
        raise AssertionError("not reached")


def _etag(key: str, answer: dict[str, Any]) -> str:
    etag = answer.get("ETag")
    if not etag:
        raise StoreError(f"{key}: an answer without an etag")
    return str(etag)


def _whole(key: str, body: bytes, answer: dict[str, Any]) -> bytes:
    if len(body) != answer["ContentLength"]:
        raise StoreError(f"{key}: the answer was cut off")
    return body


def _md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()


def _code(error: ClientError) -> tuple[str, int]:
    response: Any = error.response
    return str(response.get("Error", {}).get("Code", "")), int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def _failure(key: str, error: Exception) -> StoreError:
    """What went wrong, as a StoreError that says whether the request may have happened and whether repeating is of use."""
    if isinstance(error, ClientError):
        code, status = _code(error)
        refused = 400 <= status < 500 or status == 501
        lasting = refused and status not in (408, 429) and code not in _PASSING_4XX
        return StoreError(f"{key}: {status} {code}", unknown=not refused, lasting=lasting)
    sent = not isinstance(error, _NEVER_SENT + _LASTING)
    return StoreError(f"{key}: {type(error).__name__}", unknown=sent, lasting=isinstance(error, _LASTING))
