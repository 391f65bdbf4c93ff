"""What every store promises (`app/store/contract.py`), on all of them alike."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from app.store.contract import Absent, PreconditionFailed, Store


def test_get_gives_what_was_put(store: Store) -> None:
    body = secrets.token_bytes(100_000)
    etag = store.put("a/b", body)
    assert store.get("a/b") == (body, etag)
    head = store.head("a/b")
    assert (head.etag, head.size, head.put_id) == (etag, len(body), None)


def test_an_empty_body_is_an_object(store: Store) -> None:
    etag = store.put("a", b"", if_none_match=True)
    assert store.get("a") == (b"", etag)
    assert store.head("a").size == 0


def test_absent(store: Store, tmp_path: Path) -> None:
    store.put("a/b/c", b"1")
    for key in ("x", "a/b/x", "a/b", "a/b/c/d"):
        with pytest.raises(Absent):
            store.get(key)
        with pytest.raises(Absent):
            store.head(key)
        with pytest.raises(Absent):
            store.get_file(key, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_create_only_once(store: Store) -> None:
    etag = store.put("a", b"1", if_none_match=True)
    for body in (b"2", b"1"):
        with pytest.raises(PreconditionFailed):
            store.put("a", body, if_none_match=True)
    assert store.get("a") == (b"1", etag)


def test_a_deleted_key_can_be_created_again(store: Store) -> None:
    store.put("a/b", b"1", if_none_match=True)
    store.delete("a/b")
    store.delete("a/b")
    store.delete("never/was")
    with pytest.raises(Absent):
        store.get("a/b")
    store.put("a/b", b"2", if_none_match=True)
    assert store.get("a/b").body == b"2"


def test_replace_only_what_was_read(store: Store) -> None:
    first = store.put("a", b"1")
    second = store.put("a", b"2", if_match=first)
    assert second != first
    with pytest.raises(PreconditionFailed):
        store.put("a", b"3", if_match=first)
    assert store.get("a") == (b"2", second)
    assert store.head("a").etag == second


def test_nothing_can_be_replaced_where_nothing_is(store: Store) -> None:
    etag = store.put("other", b"1")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"2", if_match=etag)
    with pytest.raises(Absent):
        store.get("a")


def test_an_unconditional_put_replaces(store: Store) -> None:
    store.put("a", b"1")
    assert store.put("a", b"2") == store.get("a").etag
    assert store.get("a").body == b"2"


def test_a_body_that_returns_brings_its_etag_back(store: Store) -> None:
    first = store.put("a", b"1")
    store.put("a", b"2")
    assert store.put("a", b"1") == first


def test_the_put_id_is_that_of_the_put_that_won(store: Store) -> None:
    etag = store.put("a", b"1", if_none_match=True, put_id="p1")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"1", if_none_match=True, put_id="p2")
    assert store.head("a").put_id == "p1"
    second = store.put("a", b"2", if_match=etag, put_id="p3")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"3", if_match=etag, put_id="p4")
    assert store.head("a").put_id == "p3"
    store.put("a", b"4", if_match=second)
    assert store.head("a").put_id is None


@pytest.mark.parametrize("condition", [{"if_match": ""}, {"if_match": "x", "if_none_match": True}])
def test_conditions_that_make_no_sense(store: Store, condition: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="if_match"):
        store.put("a", b"1", **condition)  # type: ignore[arg-type]


BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    "..",
    "a/../b",
    ".",
    "a/./b",
    ".meta/tmp/x",
    "a/.b",
    "a\0b",
    "a b",
    "a\n",
    "é",
    "a\\b",
    "x" * 256,
    "/".join(["x" * 200] * 6),
]


def test_bad_keys_are_refused_everywhere(store: Store, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"1")
    calls: list[Callable[[str], object]] = [
        store.get,
        store.head,
        store.delete,
        lambda key: store.put(key, b"1"),
        lambda key: store.get_file(key, tmp_path / "got"),
        lambda key: store.put_file(key, tmp_path / "file"),
    ]
    for key in BAD_KEYS:
        for call in calls:
            with pytest.raises(ValueError, match="not a key"):
                call(key)


def test_bad_prefixes_are_refused(store: Store) -> None:
    for prefix in ("/", "../", "a/../", ".meta/"):
        with pytest.raises(ValueError, match="key"):
            store.list(prefix)
        with pytest.raises(ValueError, match="key"):
            store.list_dirs(prefix)
    with pytest.raises(ValueError, match="slash"):
        store.list_dirs("a")


KEYS = [
    "a-b/1",
    "a.json",
    "a/00000001/1",
    "a/00000001/2",
    "a/00000002/1",
    "a/b",
    "a/b-c",
    "a0",
    "a=b",
    "ab/c",
    "b/x/y/z",
    "B/1",
]


def test_listing_is_in_the_order_of_the_bytes_of_full_keys(store: Store) -> None:
    for key in KEYS:
        store.put(key, b"1")
    assert store.list("") == sorted(KEYS)
    for prefix in ("a", "a/", "a/0", "a/00000001/", "a/b", "b/x", "b/x/", "c", "c/d/", "a/b/"):
        assert store.list(prefix) == sorted(key for key in KEYS if key.startswith(prefix)), prefix


def test_every_page_of_every_size_goes_on_where_the_last_ended(store: Store) -> None:
    for key in KEYS:
        store.put(key, b"1")
    for limit in (1, 2, 5):
        found: list[str] = []
        while page := store.list("", start_after=found[-1] if found else "", limit=limit):
            assert len(page) <= limit
            found += page
        assert found == sorted(KEYS)


def test_listing_starts_after_keys_that_are_not_there(store: Store) -> None:
    for key in KEYS:
        store.put(key, b"1")
    for after in ("A", "a", "a-", "a/", "a/00000001", "a/00000001/", "a/00000001/15", "a/a", "a1", "b/x/y", "zzz"):
        assert store.list("a", start_after=after) == sorted(key for key in KEYS if key.startswith("a") and key > after), after


def test_folders_are_those_with_objects_below(store: Store) -> None:
    for key in KEYS:
        store.put(key, b"1")
    store.put("gone/1", b"1")
    store.delete("gone/1")
    assert store.list_dirs("") == ["B", "a-b", "a", "ab", "b"]
    assert store.list_dirs("a/") == ["00000001", "00000002"]
    assert store.list_dirs("b/") == ["x"]
    assert store.list_dirs("b/x/y/") == []
    assert store.list_dirs("none/") == []
    assert store.list_dirs("a/", start_after="00000001") == ["00000002"]
    assert store.list_dirs("", start_after="a-b") == ["a", "ab", "b"]
    assert store.list_dirs("", start_after="aa") == ["ab", "b"]
    found: list[str] = []
    while page := store.list_dirs("", start_after=found[-1] if found else "", limit=2):
        found += page
    assert found == ["B", "a-b", "a", "ab", "b"]


def test_more_than_one_answer_of_the_store_makes_a_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.store.s3.PAGE", 7)
    keys = [f"t/{number:03d}/x" for number in range(20)]
    for key in keys:
        store.put(key, b"1")
    assert store.list("t/") == keys
    assert store.list("t/", limit=15) == keys[:15]
    assert store.list_dirs("t/") == [f"{number:03d}" for number in range(20)]
    assert store.list_dirs("t/", limit=15) == [f"{number:03d}" for number in range(15)]


def test_files_go_in_and_out(store: Store, tmp_path: Path) -> None:
    body = secrets.token_bytes(3_000_000)
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(body)
    target.write_bytes(b"old")
    etag = store.put_file("big/file", source)
    assert store.head("big/file")[:2] == (etag, len(body))
    assert store.get("big/file") == (body, etag)
    assert store.get_file("big/file", target) == etag
    assert target.read_bytes() == body
    source.write_bytes(b"new")
    store.put_file("big/file", source)
    assert store.get("big/file").body == b"new"
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ["source", "target"]


def test_of_racing_creates_one_wins(store: Store) -> None:
    def create(number: int) -> int | None:
        try:
            store.put(key, b"%d" % number, if_none_match=True)
        except PreconditionFailed:
            return None
        return number

    with ThreadPoolExecutor(6) as pool:
        for round_ in range(5):
            key = f"race/{round_}"
            winners = [number for number in pool.map(create, range(6)) if number is not None]
            assert len(winners) == 1
            assert store.get(key).body == b"%d" % winners[0]


def test_of_racing_replacements_one_wins(store: Store) -> None:
    def replace(number: int) -> int | None:
        try:
            store.put("race", b"%d %d" % (round_, number), if_match=etag)
        except PreconditionFailed:
            return None
        return number

    etag = store.put("race", b"start")
    with ThreadPoolExecutor(6) as pool:
        for round_ in range(5):
            winners = [number for number in pool.map(replace, range(6)) if number is not None]
            assert len(winners) == 1
            got = store.get("race")
            assert got.body == b"%d %d" % (round_, winners[0])
            etag = got.etag
