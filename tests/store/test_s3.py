"""What is particular to S3: which answers mean what, what is repeated, what goes over the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from app.core.errors import Unavailable
from app.store import s3
from app.store.contract import Absent, PreconditionFailed, Raced, StoreError
from app.store.puts import put_once
from app.store.s3 import S3Store, connect
from tests.support.canned_http import Canned, canned, http
from tests.support.moto_server import MotoServer


def error(status: str, code: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>because</Message></Error>".encode()
    return http(status, body, Content_Type="application/xml")


OK = http("200 OK", ETag='"e1"')
SLOW_DOWN = error("503 Slow Down", "SlowDown")
CUT_OFF = http("200 OK", b"half", length=100, ETag='"e1"')
MUTE = None
HANG_UP = b""


@contextmanager
def store_that_answers(answers: Sequence[bytes | None]) -> Iterator[tuple[S3Store, Canned]]:
    with canned(answers) as server:
        client = connect(endpoint=server.url, access_key="a", secret_key="s", connect_timeout=1, read_timeout=0.3)
        yield S3Store(client, "bucket"), server
        client.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_WAIT", 0.001)


@pytest.mark.parametrize(
    ("answer", "raised"),
    [
        (error("412 Precondition Failed", "PreconditionFailed"), PreconditionFailed),
        (http("412 Precondition Failed"), PreconditionFailed),
        (error("409 Conflict", "ConditionalRequestConflict"), Raced),
        (error("409 Conflict", "OperationAborted"), Raced),
    ],
)
def test_conditions_that_fail_are_told_at_once(answer: bytes, raised: type[Exception]) -> None:
    for condition in ({"if_none_match": True}, {"if_match": "e"}):
        with store_that_answers([answer]) as (store, server):
            with pytest.raises(raised):
                store.put("a", b"1", **condition)
            assert len(server.asked) == 1


def test_replacing_what_is_not_there_is_a_failed_condition() -> None:
    with store_that_answers([error("404 Not Found", "NoSuchKey")]) as (store, _), pytest.raises(PreconditionFailed):
        store.put("a", b"1", if_match="e")


@pytest.mark.parametrize(
    ("answer", "unknown", "lasting"),
    [
        (SLOW_DOWN, True, False),
        (error("500 Internal Server Error", "InternalError"), True, False),
        (error("200 OK", "InternalError"), True, False),
        (http("200 OK"), True, False),
        (http("502 Bad Gateway", b"<html>"), True, False),
        (MUTE, True, False),
        (HANG_UP, True, False),
        (error("403 Forbidden", "AccessDenied"), False, True),
        (error("404 Not Found", "NoSuchBucket"), False, True),
        (error("501 Not Implemented", "NotImplemented"), False, True),
        (error("400 Bad Request", "RequestTimeout"), False, False),
        (error("400 Bad Request", "BadDigest"), False, False),
        (error("429 Too Many Requests", "TooManyRequests"), False, False),
    ],
)
def test_a_write_that_fails_is_not_repeated_and_says_what_is_known(answer: bytes | None, unknown: bool, lasting: bool) -> None:
    with store_that_answers([answer, OK]) as (store, server):
        with pytest.raises(StoreError) as caught:
            store.put("a", b"1", if_none_match=True)
        assert (caught.value.unknown, caught.value.lasting) == (unknown, lasting)
        assert len(server.asked) == 1


def test_a_write_that_was_never_sent_did_not_happen() -> None:
    with canned([]) as server:
        url = server.url
    client = connect(endpoint=url, access_key="a", secret_key="s", connect_timeout=1)
    with pytest.raises(StoreError) as caught:
        S3Store(client, "bucket").put("a", b"1")
    assert (caught.value.unknown, caught.value.lasting) == (False, False)


def test_without_credentials_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = S3Store(connect(endpoint="http://127.0.0.1:9"), "bucket")
    with pytest.raises(StoreError) as caught:
        store.put("a", b"1")
    assert (caught.value.unknown, caught.value.lasting) == (False, True)


@pytest.mark.parametrize("bad", [SLOW_DOWN, MUTE, HANG_UP, CUT_OFF, error("500 Internal Server Error", "InternalError")])
def test_reads_are_repeated(bad: bytes | None, tmp_path: Path) -> None:
    good = http("200 OK", b"body", ETag='"e1"')
    with store_that_answers([bad, good]) as (store, server):
        assert store.get("a") == (b"body", '"e1"')
        assert len(server.asked) == 2
    with store_that_answers([bad, good]) as (store, _):
        assert store.get_file("a", tmp_path / "file") == '"e1"'
        assert (tmp_path / "file").read_bytes() == b"body"


@pytest.mark.parametrize("call", ["get", "head", "list", "list_dirs", "delete", "get_file", "put_file"])
def test_reads_are_repeated_a_bounded_number_of_times(call: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    with store_that_answers([SLOW_DOWN] * 20) as (store, server):
        calls: dict[str, Callable[[], object]] = {
            "get": lambda: store.get("a"),
            "head": lambda: store.head("a"),
            "list": lambda: store.list("a"),
            "list_dirs": lambda: store.list_dirs("a/"),
            "delete": lambda: store.delete("a"),
            "get_file": lambda: store.get_file("a", tmp_path / "got"),
            "put_file": lambda: store.put_file("a", tmp_path / "file"),
        }
        with pytest.raises(StoreError):
            calls[call]()
        assert len(server.asked) == s3.READ_TRIES
        assert sorted(path.name for path in tmp_path.iterdir()) == ["file"]


def test_a_bucket_that_is_not_there_is_not_an_absent_object() -> None:
    with store_that_answers([error("404 Not Found", "NoSuchBucket")]) as (store, server):
        with pytest.raises(StoreError) as caught:
            store.get("a")
        assert caught.value.lasting
        assert len(server.asked) == 1
    with store_that_answers([error("404 Not Found", "NoSuchKey")]) as (store, server), pytest.raises(Absent):
        store.get("a")


def test_what_goes_over_the_wire() -> None:
    with store_that_answers([OK] * 3) as (store, server):
        store.put("a/b", b"hello", if_none_match=True, put_id="p1")
        store.put("a/b", b"hello", if_match='"e1"')
        store.put("a/b", b"hello")
        first, second, third = server.asked
    assert first.line == "PUT /bucket/a/b HTTP/1.1"
    assert first.body == b"hello"
    assert first.headers["content-md5"] == "XUFAKrxLKna5cZ2REBfFkg=="
    assert first.headers["if-none-match"] == "*"
    assert first.headers["x-amz-meta-byre-put-id"] == "p1"
    assert "if-match" not in first.headers
    assert "expect" not in first.headers
    assert second.headers["if-match"] == '"e1"'
    for headers in (second.headers, third.headers):
        assert "if-none-match" not in headers
        assert not [name for name in headers if "checksum" in name or "put-id" in name]
    assert "if-match" not in third.headers


def test_a_lost_answer_is_found_out_by_the_put_id() -> None:
    answers = [
        MUTE,
        error("412 Precondition Failed", "PreconditionFailed"),
        http("200 OK", ETag='"e1"', x_amz_meta_byre_put_id="mine"),
    ]
    with store_that_answers(answers) as (store, server):
        assert put_once(store, "a", b"1", if_none_match=True, put_id="mine") == '"e1"'
        bodies = [asked.body for asked in server.asked if asked.line.startswith("PUT")]
    assert bodies == [b"1", b"1"]


def test_a_store_that_is_busy_for_too_long_is_unavailable() -> None:
    started = time.monotonic()
    with store_that_answers([SLOW_DOWN] * 50) as (store, _), pytest.raises(Unavailable):
        put_once(store, "a", b"1", if_none_match=True, deadline_seconds=0.5)
    assert time.monotonic() - started < 5


def test_large_files_go_up_in_parts(moto: MotoServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "ONE_PUT_BYTES", 6 << 20)
    body = bytes(range(256)) * (50 << 10)
    (tmp_path / "file").write_bytes(body)
    store = moto.store()
    etag = store.put_file("big", tmp_path / "file")
    assert store.head("big") == (etag, len(body), None)
    assert store.get_file("big", tmp_path / "got") == etag
    assert (tmp_path / "got").read_bytes() == body


def test_prefixes_of_a_bucket_are_apart(moto: MotoServer) -> None:
    bucket = moto.bucket()
    root, one, two = moto.store(bucket), moto.store(bucket, "p/one"), moto.store(bucket, "p/two")
    one.put("a", b"1", if_none_match=True)
    two.put("a", b"2", if_none_match=True)
    assert (one.list(""), one.list_dirs("")) == (["a"], [])
    assert root.list("") == ["p/one/a", "p/two/a"]
    assert root.list_dirs("p/") == ["one", "two"]
