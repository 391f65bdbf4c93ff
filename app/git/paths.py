"""Paths of files in a repository: bytes for git, text for people.

Rules (design 04): a path that is UTF-8 and doesn't begin with a quote is shown as it is; any other in git's quoted form, `"..."` with C
escapes, as git shows it with core.quotePath. `parse` takes either form back, so what was shown can be asked for.
"""

from __future__ import annotations

import re

from app.core.errors import Invalid

MAX_BYTES = 4096  # PATH_MAX of Linux, limits.h
_NAMED = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_VALUES = {name: value for value, name in _NAMED.items()}
_ESCAPE = re.compile(r'\\(?:([0-3][0-7]{2})|([abtnvfr"\\]))|([^\\"])')


def show(path: bytes) -> str:
    """A path for people: as it is if it is UTF-8 and has no quote in front, else quoted."""
    if not path.startswith(b'"'):
        try:
            return path.decode()
        except UnicodeDecodeError:
            pass
    return quote(path)


def quote(path: bytes) -> str:
    """git's quoted form of any bytes."""
    return '"' + "".join(map(_escape, path)) + '"'


def unquote(text: str) -> bytes:
    """What `quote` was given. Raises ValueError if `text` is not in the quoted form."""
    if len(text) < 2 or not text.startswith('"') or not text.endswith('"'):
        raise ValueError("not quoted")
    out, at, end = bytearray(), 1, len(text) - 1
    while at < end:
        found = _ESCAPE.match(text, at, end)
        if not found:
            raise ValueError("a wrong escape")
        octal, named, plain = found.groups()
        out += bytes([int(octal, 8)]) if octal else bytes([_VALUES[named]]) if named else plain.encode()
        at = found.end()
    return bytes(out)


def parse(text: str, field: str = "path") -> bytes:
    """The path that a caller means. Raises Invalid, naming `field`, unless it is one that a file of a repository can have."""
    try:
        path = unquote(text) if text.startswith('"') else text.encode()
    except (ValueError, UnicodeEncodeError):
        raise Invalid(f"{field} is not a path, nor one in git's quoted form", field) from None
    if not path or len(path) > MAX_BYTES or b"\0" in path:
        raise Invalid(f"{field} is empty, too long, or holds a NUL", field)
    if any(part in (b"", b".", b"..") for part in path.split(b"/")):
        raise Invalid(f"{field} must be a path from the top of the repository, without empty, . or .. parts", field)
    return path


def _escape(byte: int) -> str:
    if byte in _NAMED:
        return "\\" + _NAMED[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
