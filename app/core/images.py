"""Which kind of image some bytes are, by the signatures at their beginning.

The signatures are those of the WHATWG MIME Sniffing Standard, section 6.1, "image type pattern matching algorithm".
"""

from __future__ import annotations

KINDS = ("image/png", "image/jpeg", "image/gif", "image/webp")


def media_type(data: bytes) -> str | None:
    """One of `KINDS`, None if `data` is none of them."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data[:4] == b"RIFF" and data[8:14] == b"WEBPVP":
        return "image/webp"
    return None
