"""Addresses of stores, and the way from a directory to a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.core.errors import Invalid
from app.store.directory import META, DirectoryStore
from app.store.open import open_store
from app.store.puts import create_json, put_once, read_json, update_json
from app.store.s3 import S3Store
from tests.support.moto_server import ACCESS_KEY, SECRET_KEY, MotoServer


def test_a_directory_by_path_and_by_url(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a b"), f"file://{tmp_path}/a%20b"):
        store = open_store(url)
        assert isinstance(store, DirectoryStore)
        store.put("key", b"1")
        assert (tmp_path / "a b" / "key").exists()


@pytest.mark.parametrize("prefix", ["", "/", "/deep/down", "/deep/down/"])
def test_a_bucket(moto: MotoServer, prefix: str) -> None:
    bucket = moto.bucket()
    store = open_store(f"s3://{bucket}{prefix}", s3_endpoint=moto.endpoint, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    assert isinstance(store, S3Store)
    store.put("key", b"1")
    assert moto.store(bucket).list("") == [f"{prefix.strip('/')}/key".strip("/")]
    store.close()


@pytest.mark.parametrize(
    "url", ["", "data", "./data", "s3://", "s3:///x", "s3://b/../x", "s3://b/.x", "s3://b?x=1", "gs://b/x", "file://"]
)
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(Invalid, match="object store") as caught:
        open_store(url)
    assert caught.value.field == "BYRE_OBJECT_STORE"


def test_copying_the_directory_into_a_bucket_is_the_migration(tmp_path: Path, moto: MotoServer) -> None:
    directory, bucket = DirectoryStore(tmp_path / "store"), moto.store()
    create_json(directory, "tenants/t/sessions/s/session.json", {"n": 1})
    update_json(directory, "tenants/t/sessions/s/session.json", lambda d: {**d, "n": 2})
    for offset in (0, 10):
        put_once(directory, f"tenants/t/sessions/s/log/00000000/{offset:016d}", b"%d" % offset, if_none_match=True)
    root = tmp_path / "store"
    for path in root.rglob("*"):
        key = path.relative_to(root).as_posix()
        if path.is_file() and not key.startswith(META + "/"):
            bucket.put_file(key, path)
    assert bucket.list("") == directory.list("")
    assert bucket.list_dirs("tenants/t/sessions/") == directory.list_dirs("tenants/t/sessions/") == ["s"]
    for key in bucket.list(""):
        assert bucket.get(key).body == directory.get(key).body
    assert read_json(bucket, "tenants/t/sessions/s/session.json")[0]["n"] == 2
    assert update_json(bucket, "tenants/t/sessions/s/session.json", lambda d: {**d, "n": 3})[0]["n"] == 3
