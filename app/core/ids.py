"""Ids: 32 hex characters that sort by creation time (UUIDv7, RFC 9562 section 5.7)."""

from __future__ import annotations

import re

_HEX32 = re.compile(r"^[0-9a-f]{32}\Z")


def make(unix_ms: int, entropy: bytes) -> str:
    """A UUIDv7 as 32 lower-case hex characters. `unix_ms` is milliseconds since 1970 (48 bits), `entropy` 10 random bytes.

    Within one millisecond the order is random.
    """
    if len(entropy) != 10:
        raise ValueError("entropy must be 10 bytes")
    rand = int.from_bytes(entropy, "big")
    value = (unix_ms & (2**48 - 1)) << 80
    value |= 0x7 << 76
    value |= (rand >> 66 & 0xFFF) << 64
    value |= 0b10 << 62
    value |= rand & (2**62 - 1)
    return f"{value:032x}"


def normal(text: str) -> str | None:
    """`text` in lower case if it is an id (the contract allows upper-case hex), else None."""
    lowered = text.lower()
    return lowered if _HEX32.match(lowered) else None


def time_ms(id: str) -> int:
    """Milliseconds since 1970 at which an id was made. Raises ValueError for what is no id."""
    if normal(id) is None:
        raise ValueError(f"not an id: {id[:80]!r}")
    return int(id[:12], 16)
