"""Looks for secrets in everything that a deployment has written: files, compressed or not, and Redis.

assert leaks(["sk-1"], [data], redis_client) == []
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import zstandard

FRAME = b"\x28\xb5\x2f\xfd"  # RFC 8878, section 3.1.1


def leaks(secrets: Sequence[str], folders: Sequence[Path], redis: Any = None, *, besides: Sequence[Path] = ()) -> list[str]:
    """Where each of `secrets` stands in clear, or in Base64: files below `folders` but not below `besides`, keys of Redis."""
    needles = {form: secret for secret in secrets for form in _forms(secret)}
    found = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and not any(path.is_relative_to(other) for other in besides):
                found += [
                    f"{path}: {needles[form]}" for form in needles if any(form in raw for raw in _unpacked(path.read_bytes()))
                ]
    for key, value in _values(redis) if redis is not None else ():
        found += [
            f"{key!r}: {needles[form]}" for form in needles if form in key or any(form in raw for raw in _unpacked(value))
        ]
    return found


def _forms(secret: str) -> Iterator[bytes]:
    raw = secret.encode()
    yield raw
    for shift in range(3):  # as it looks at each place in a longer text
        yield base64.b64encode(b"\0" * shift + raw)[(0, 2, 3)[shift] : -4]


def _unpacked(raw: bytes) -> Iterator[bytes]:
    """The bytes, and what is in each Zstandard frame among them."""
    yield raw
    at = raw.find(FRAME)
    while at >= 0:
        with contextlib.suppress(zstandard.ZstdError):  # those four bytes can be there by chance
            yield zstandard.ZstdDecompressor().decompressobj().decompress(raw[at:])
        at = raw.find(FRAME, at + 1)


def _values(redis: Any) -> Iterator[tuple[bytes, bytes]]:
    for key in redis.scan_iter(count=1000):
        match redis.type(key):
            case b"string":
                value: Any = redis.get(key)
            case b"hash":
                value = redis.hgetall(key)
            case b"list":
                value = redis.lrange(key, 0, -1)
            case b"set":
                value = redis.smembers(key)
            case b"zset":
                value = redis.zrange(key, 0, -1, withscores=True)
            case b"stream":
                value = redis.xrange(key)
            case b"none":
                continue  # it has run out just now
            case other:
                raise AssertionError(f"a key of type {other!r}")
        for part in _flat(value):
            yield key, part


def _flat(value: Any) -> Iterator[bytes]:
    if isinstance(value, bytes):
        yield value
    elif isinstance(value, dict):
        yield from _flat([*value, *value.values()])
    elif isinstance(value, list | tuple | set):
        for part in value:
            yield from _flat(part)
