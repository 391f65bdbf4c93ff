"""Images: typed by their bytes, bounded while they are read, kept once, served so that a browser sees an image and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from app.services.blobs import LARGEST, Blobs
from app.services.writer import Clock
from app.store import keys
from app.store.memory import MemoryStore
from tests.http.conftest import Tier
from tests.http.server import Server, read_all

IMAGES = {
    "image/png": b"\x89PNG\r\n\x1a\n" + b"\0" * 30,
    "image/jpeg": b"\xff\xd8\xff\xe0" + b"\0" * 30,
    "image/gif": b"GIF89a" + b"\0" * 30,
    "image/webp": b"RIFF\x24\0\0\0WEBPVP8 " + b"\0" * 30,
}
PNG = IMAGES["image/png"]


class Shop(Tier):
    """The application over real blobs in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self.blobs = Blobs(self.store, Clock())
        super().__init__(byre=SimpleNamespace(blobs=self.blobs))

    def upload(self, body: bytes, *, token: str = "user", kind: str = "image/png", **headers: str) -> Any:
        return self.call("POST", "/api/blobs", token=token, body=body, headers={"Content-Type": kind, **headers})


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.mark.parametrize("kind", IMAGES)
def test_the_type_is_that_of_the_bytes_whatever_is_said(shop: Shop, kind: str) -> None:
    for said in ("image/png", "text/html", "application/json"):
        made = shop.upload(IMAGES[kind], kind=said)
        assert (made.status_code, made.json["content_type"], made.json["created_by"]) == (201, kind, "bob")
    got = shop.call("GET", f"/api/blobs/{made.json['id']}", token="operator")
    assert (got.status_code, got.content, got.headers["content-type"]) == (200, IMAGES[kind], kind)


@pytest.mark.parametrize(
    "body", [b"", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"<html>", b"GIF8", b"RIFF\0\0\0\0WAVEfmt ", b" " + PNG]
)
def test_what_is_no_image_is_400_and_not_kept(shop: Shop, body: bytes) -> None:
    answer = shop.upload(body)
    assert (answer.status_code, set(answer.json)) == (400, {"message"})
    assert not shop.store.list("")


def test_five_megabytes_are_taken_and_a_byte_more_is_413(shop: Shop) -> None:
    assert shop.upload(PNG.ljust(LARGEST, b"\0")).status_code == 201
    assert shop.upload(PNG.ljust(LARGEST + 1, b"\0")).status_code == 413
    assert shop.call("PUT", "/api/me", token="user", body=b" " * (1 << 20) + b"{}").status_code == 413


def test_the_headers_leave_a_browser_nothing_to_run(shop: Shop) -> None:
    name = shop.upload(PNG).json["id"]
    headers = shop.call("GET", f"/api/blobs/{name}", token="user").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in headers["content-security-policy"]
    assert headers["content-disposition"].startswith("inline; filename=")
    assert "immutable" in headers["cache-control"]
    assert "private" in headers["cache-control"]
    assert headers["cross-origin-resource-policy"] == "same-origin"


def test_the_same_image_is_kept_once_and_stays_its_first_uploaders(shop: Shop) -> None:
    first, again = shop.upload(PNG, token="user").json, shop.upload(PNG, token="operator").json
    assert first == again
    assert len(shop.store.list("")) == 2


def test_another_tenant_sees_nothing_of_it(shop: Shop) -> None:
    name = shop.upload(PNG).json["id"]
    assert shop.call("GET", f"/api/blobs/{name}", token="foreign").status_code == 404
    assert shop.upload(PNG, token="foreign").json["created_by"] == "eve"


@pytest.mark.parametrize("name", ["0" * 64, "nothing", "..", "a" * 300, "0198f2c4a7b07c1d9a3e5b6f8d2c4e10", "%00"])
def test_an_unknown_name_is_404(shop: Shop, name: str) -> None:
    shop.store.put(keys.blob("acme", "0198f2c4a7b07c1d9a3e5b6f8d2c4e10"), b"a large result of a tool")
    assert shop.call("GET", f"/api/blobs/{name}", token="user").status_code == 404


def test_an_image_that_was_damaged_is_not_served(shop: Shop) -> None:
    name = shop.upload(PNG).json["id"]
    shop.store.put(keys.blob("acme", name), PNG + b"!")
    answer = shop.call("GET", f"/api/blobs/{name}", token="user")
    assert (answer.status_code, "acme" in answer.text) == (500, False)


def test_sessions_get_bytes_and_type_and_unknown_images_are_named(shop: Shop) -> None:
    name = shop.upload(PNG).json["id"]
    assert shop.blobs.read("acme", name) == (PNG, "image/png")
    shop.blobs.check("acme", [name])
    with pytest.raises(Exception, match=r"images\[1\]: no such blob"):
        shop.blobs.check("acme", [name, "1" * 64])


def test_a_body_without_a_length_is_bounded_while_it_is_read(server: Server) -> None:
    connection = server.connect()
    head = "POST /api/blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer user\r\nTransfer-Encoding: chunked\r\n\r\n"
    piece = b"10000\r\n" + b"\0" * 0x10000 + b"\r\n"
    connection.sendall(head.encode() + piece * (LARGEST // 0x10000 + 1) + b"0\r\n\r\n")
    connection.settimeout(20)
    answer = connection.recv(200)
    connection.close()
    assert answer.startswith(b"HTTP/1.1 413"), answer or read_all(connection)
