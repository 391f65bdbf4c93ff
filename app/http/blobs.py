"""Images over HTTP. Their bytes came from somebody: whatever they hold, a browser must see an image and nothing else."""

from __future__ import annotations

from app.http.deps import Document
from app.http.requests import Call, UnsupportedMediaType, read_body
from app.services.blobs import LARGEST, Blobs

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cross-Origin-Resource-Policy": "same-origin",
    # its name is what it holds, so it never changes; `private`: it was given to one caller
    "Cache-Control": "private, max-age=31536000, immutable",
}


def upload(call: Call, blobs: Blobs) -> Document:
    """Takes the body whole, at most `LARGEST` bytes of it. What the client says of its type doesn't count."""
    encoding = call.req.get_header("Content-Encoding")
    if encoding and encoding.strip().lower() != "identity":
        raise UnsupportedMediaType("bodies with a Content-Encoding are not taken")
    return blobs.upload(call.caller, read_body(call.req, LARGEST))


def download(call: Call, blobs: Blobs) -> None:
    """Answers the bytes with the type that they have."""
    image = blobs.read(call.caller.tenant, call.params["blobId"])
    call.resp.data = image.body
    call.resp.content_type = image.media_type
    for name, value in SAFE.items():
        call.resp.set_header(name, value)
    extension = image.media_type.partition("/")[2]
    call.resp.set_header("Content-Disposition", f'inline; filename="{call.params["blobId"][:16]}.{extension}"')
