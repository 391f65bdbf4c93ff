"""How the text of a setting becomes a value.

Rules: a parser is a pure function from text to a value; it raises `ValueError` with a phrase that reads on after the
setting's name ("must be ..., not ..."). Parsers of secrets never repeat what they were given.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit, urlunsplit

_NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
_PREFIX = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,39}\Z")
_SIZE = re.compile(r"^([0-9]+)\s*(KiB|MiB|GiB)?\Z")
_KEPT = re.compile(r"^(all|[1-9][0-9]{0,5}d?)\Z")
_UNITS = {None: 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_VARIABLE = re.compile(r"^[A-Za-z_][A-Za-z0-9_]{0,127}\Z")
MINIMUM_SECRET = 16
PREFIX_OF_OURS = "BYRE_"


def text(value: str) -> str:
    """Anything."""
    return value


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number within the bounds, both included."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError(f"must be a whole number, not {value!r}") from None
        if not low <= number <= high:
            raise ValueError(f"must be from {low} to {high}, not {number}")
        return number

    return parse


def seconds(low: float, high: float) -> Callable[[str], float]:
    """A number of seconds, fractions allowed, within the bounds, both included."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"must be a number of seconds, not {value!r}") from None
        if not low <= number <= high:  # also refuses nan
            raise ValueError(f"must be from {low:g} to {high:g} seconds, not {value}")
        return number

    return parse


def size(low: int, high: int) -> Callable[[str], int]:
    """A number of bytes, plain or with KiB, MiB or GiB behind it, within the bounds, both included."""

    def parse(value: str) -> int:
        found = _SIZE.match(value)
        if not found:
            raise ValueError(f"must be a number of bytes such as 1048576 or 1MiB, not {value!r}")
        number = int(found[1]) * _UNITS[found[2]]
        if not low <= number <= high:
            raise ValueError(f"must be from {low} to {high} bytes, not {number}")
        return number

    return parse


def kept(value: str) -> str:
    """How much is kept: `all`, a number such as 20, or days such as 30d."""
    if not _KEPT.match(value.lower()):
        raise ValueError(f"must be all, a number of at least 1, or days such as 30d, not {value!r}")
    return value.lower()


def choice(*allowed: str) -> Callable[[str], str]:
    """One of these words, in any case."""

    def parse(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return value.lower()

    return parse


def word(*allowed: str) -> Callable[[str], str]:
    """One of these words, in any case; the value is spelt as here."""
    spelt = {one.lower(): one for one in allowed}

    def parse(value: str) -> str:
        if value.lower() not in spelt:
            raise ValueError(f"must be one of {', '.join(allowed)}, not {value!r}")
        return spelt[value.lower()]

    return parse


def amount(low: float, high: float) -> Callable[[str], float]:
    """A number within the bounds, both included."""

    def parse(value: str) -> float:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"must be a number, not {value!r}") from None
        if not low <= number <= high:  # also refuses nan
            raise ValueError(f"must be from {low:g} to {high:g}, not {value}")
        return number

    return parse


def variables(value: str) -> Mapping[str, str]:
    """`NAME=VALUE` pairs separated by semicolons: variables of an agent's environment. What is wrong isn't repeated."""
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in value.split(";"))):
        key, equals, text = part.partition("=")
        if not equals or not _VARIABLE.match(key.strip()):
            raise ValueError("must be NAME=VALUE pairs separated by semicolons")
        if key.strip().startswith(PREFIX_OF_OURS):
            raise ValueError(f"must not hold variables of Byre ({PREFIX_OF_OURS}...)")
        found[key.strip()] = text.strip()
    return MappingProxyType(found)


def name(value: str) -> str:
    """A harness, vendor or tenant: lower-case letters, digits, `.`, `_`, `-`, at most 63 characters."""
    if not _NAME.match(value):
        raise ValueError(f"must be a name in lower case such as claude, not {value!r}")
    return value


def names(value: str) -> tuple[str, ...]:
    """Names separated by commas; a repeated one counts once."""
    return tuple(dict.fromkeys(name(part.strip()) for part in value.split(",") if part.strip()))


def words(value: str) -> tuple[str, ...]:
    """Words separated by commas."""
    return tuple(part.strip() for part in value.split(",") if part.strip())


def prefix(value: str) -> str:
    """The first part of every Redis key; braces are ours (they pin all keys to one cluster slot)."""
    if not _PREFIX.match(value):
        raise ValueError(f"must be 1 to 40 letters, digits, dots, dashes or underscores, not {value!r}")
    return value


def secret(value: str) -> str:
    """A secret long enough to derive keys from."""
    if len(value) < MINIMUM_SECRET:
        raise ValueError(f"must be at least {MINIMUM_SECRET} characters long; make one with: openssl rand -hex 32")
    return value


def directory(value: str) -> Path:
    """An absolute path, `~` allowed. It need not exist yet."""
    path = Path(value).expanduser()
    if not path.is_absolute():
        raise ValueError(f"must be an absolute path, not {value!r}")
    return path


def directories(value: str) -> tuple[Path, ...]:
    """Absolute paths separated by colons."""
    return tuple(directory(part.strip()) for part in value.split(":") if part.strip())


def command(value: str) -> tuple[str, ...]:
    """A command line, split as a shell would; nothing in it is expanded."""
    try:
        parts = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"must be a command line: {error}") from None
    if not parts:
        raise ValueError("must be a command line, not empty")
    return tuple(parts)


def commands(value: str) -> Mapping[str, tuple[str, ...]]:
    """`name=command line` pairs separated by semicolons."""
    found: dict[str, tuple[str, ...]] = {}
    for part in filter(None, (part.strip() for part in value.split(";"))):
        key, equals, line = part.partition("=")
        if not equals:
            raise ValueError(f"must be NAME=COMMAND pairs separated by semicolons, not {part!r}")
        found[name(key.strip())] = command(line.strip())
    return MappingProxyType(found)


def _split(value: str) -> SplitResult:
    try:
        parts = urlsplit(value)
        _ = parts.port  # raises for a port that is no number
    except ValueError as error:
        raise ValueError(f"is not an address: {error}") from None
    return parts


def web_address(value: str) -> str:
    """An http or https address without a trailing slash."""
    parts = _split(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"must be an http:// or https:// address, not {mask_address(value)!r}")
    if parts.query or parts.fragment:
        raise ValueError("must be an address without a query or a fragment")
    return value.rstrip("/")


def redis_address(value: str) -> str:
    """redis://, rediss:// or unix:// as redis-py understands them."""
    parts = _split(value)
    if parts.scheme in ("redis", "rediss") and parts.hostname:
        return value
    if parts.scheme == "unix" and parts.path.startswith("/"):
        return value
    raise ValueError(
        f"must be redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///path/redis.sock, not {mask_address(value)!r}"
    )


def store_address(value: str) -> str:
    """s3://BUCKET/PREFIX, file:///DIRECTORY, or the absolute path of a directory."""
    if value.startswith("/"):
        return value
    parts = _split(value)
    if parts.scheme == "s3" and parts.netloc:
        return value
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return value
    raise ValueError(f"must be s3://BUCKET/PREFIX or file:///DIRECTORY, not {mask_address(value)!r}")


def file_address(value: str) -> str:
    """s3://BUCKET/KEY, or the absolute path of a file."""
    if value.startswith("/") or (value.startswith("s3://") and urlsplit(value).path.strip("/")):
        return value
    raise ValueError(f"must be s3://BUCKET/KEY or the absolute path of a file, not {value!r}")


def mask_address(value: str) -> str:
    """`value` with the password of its user part, if it has one, replaced by `***`."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return "***"
    if "@" not in parts.netloc:
        return value
    user, _, host = parts.netloc.rpartition("@")
    shown = user.split(":", 1)[0] + ":***@" + host
    return urlunsplit(parts._replace(netloc=shown))
