"""What is particular to a directory as a store: processes, crashes, durability, its files."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from app.store import directory
from app.store.contract import PreconditionFailed, StoreError
from app.store.directory import META, DirectoryStore
from tests.store.racer import whole

REPOSITORY = Path(__file__).parents[2]


def racer(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.store.racer", *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths, relative to the store, that are flushed, in order."""
    seen: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        path = str(Path(f"/proc/self/fd/{handle}").readlink())
        seen.append(path.partition("/store")[2].lstrip("/"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return seen


@contextmanager
def held(root: Path) -> Iterator[None]:
    """All locks of the store are held by a writer that does not go on."""
    handles = []
    for number in range(directory.LOCKS):
        handles.append(os.open(root / META / "locks" / f"{number:04d}", os.O_RDWR | os.O_CREAT, 0o600))
        fcntl.flock(handles[-1], fcntl.LOCK_EX)
    try:
        yield
    finally:
        for handle in handles:
            os.close(handle)


# Processes


def test_processes_race_and_one_wins_each_round(store: DirectoryStore, tmp_path: Path) -> None:
    rounds = 60
    (etag,) = {store.put(f"cas/{round_}", b"start") for round_ in range(rounds)}
    racers = {
        name: racer("race", tmp_path / "store", name, rounds, etag, stdin=subprocess.PIPE) for name in ("a", "b", "c", "d")
    }
    for process in racers.values():
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in racers.values():
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    won = {name: json.loads(process.communicate(timeout=120)[0]) for name, process in racers.items()}
    for what in ("create", "cas"):
        for round_ in range(rounds):
            winners = [name for name in won if round_ in won[name][what]]
            assert [store.get(f"{what}/{round_}").body.decode()] == winners
        assert sum(1 for name in won if won[name][what]) > 1, "nobody raced"
    assert not list((tmp_path / "store" / META / "tmp").iterdir())


def test_no_count_of_any_process_is_lost(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("counter", b"0")
    racers = [racer("count", tmp_path / "store", 50) for _ in range(4)]
    assert [process.wait(120) for process in racers] == [0] * 4
    for process in racers:
        assert process.stdout
        process.stdout.close()
    assert store.get("counter").body == b"200"


def test_a_writer_killed_at_any_moment_leaves_whole_bodies(store: DirectoryStore, tmp_path: Path) -> None:
    rng = random.Random(7)
    answered = 0
    for _ in range(8):
        process = racer("write", tmp_path / "store")
        assert process.stdout
        for _ in range(rng.randrange(1, 4)):
            answered = int(process.stdout.readline())
        time.sleep(rng.random() * 0.004)  # not a wait for anything: any moment within a write or two
        process.kill()
        answered = max([answered, *map(int, process.stdout.read().split())])
        process.stdout.close()
        process.wait(10)
        body = store.get("torn").body
        assert body == whole(int(body[:7]))
        made = store.list("made/")
        assert answered <= len(made) <= answered + 1
        for key in made[-2:]:
            number = int(key[-7:])
            assert store.get(key).body == whole(number)
            assert store.head(key).put_id == f"id-{number}"
        store.put("torn", b"the lock is free")
    assert answered >= 8


# Locks


def test_a_holder_that_does_not_go_on_makes_replacements_fail_but_not_creates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LOCKS": 4, "LOCK_SECONDS": 0.05, "CREATE_LOCK_SECONDS": 0.05}.items():
        monkeypatch.setattr(directory, name, value)
    store = DirectoryStore(tmp_path / "store")
    etag = store.put("a", b"1")
    with held(tmp_path / "store"):
        for call in (lambda: store.put("a", b"2"), lambda: store.put("a", b"2", if_match=etag), lambda: store.delete("a")):
            with pytest.raises(StoreError, match="does not go on") as caught:
                call()
            assert not caught.value.unknown
        assert store.get("a") == (b"1", etag)
        with pytest.raises(PreconditionFailed):
            store.put("a", b"3", if_none_match=True)
        store.put("b", b"4", if_none_match=True)
        with pytest.raises(PreconditionFailed):
            store.put("b", b"5", if_none_match=True)
    store.put("a", b"2", if_match=etag)


def test_greenlets_and_threads_of_a_patched_process_lose_no_count(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("counter", b"0")
    command = [sys.executable, "-m", "tests.store.greenlets", str(tmp_path / "store")]
    done = subprocess.run(command, cwd=REPOSITORY, timeout=120, check=True, capture_output=True, text=True)
    assert store.get("counter").body == b"120"
    assert min(json.loads(done.stdout).values()) > 10
    assert done.stderr == ""


# Durability


def test_the_body_is_durable_before_it_has_its_name_and_the_name_before_the_answer(
    store: DirectoryStore, flushes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b/first", b"1")
    flushes.clear()
    names: list[int] = []

    def naming(real: Callable[[Path, Path], object]) -> Callable[[Path, Path], object]:
        def named(path: Path, target: Path) -> object:
            names.append(len(flushes))
            return real(path, target)

        return named

    for method in ("hardlink_to", "replace"):
        monkeypatch.setattr(Path, method, naming(getattr(Path, method)))
    etag = store.put("a/b/c", b"1" * 1000, if_none_match=True)
    store.put("a/b/c", b"2", if_match=etag)
    assert names == [1, 3]
    tmp, folder, tmp2, folder2 = flushes
    assert tmp.startswith(".meta/tmp/")
    assert tmp2.startswith(".meta/tmp/")
    assert folder == folder2 == "a/b"


def test_new_folders_cost_no_flush_of_their_own(store: DirectoryStore, flushes: list[str]) -> None:
    store.put("a/b/c", b"1", if_none_match=True)
    assert len(flushes) == 2
    assert flushes[1] == "a/b"


def test_a_refusal_costs_no_flush(store: DirectoryStore, flushes: list[str]) -> None:
    etag = store.put("a", b"1")
    store.put("a", b"2")
    flushes.clear()
    for condition in ({"if_none_match": True}, {"if_match": etag}):
        with pytest.raises(PreconditionFailed):
            store.put("a", b"3", **condition)
    store.get("a")
    assert flushes == []


def test_what_is_read_beside_a_writer_is_made_durable_first(
    tmp_path: Path, flushes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "LOCKS", 1)
    store = DirectoryStore(tmp_path / "store")
    etag = store.put("a/b", b"1")
    reads: list[Callable[[], object]] = [
        lambda: store.get("a/b"),
        lambda: store.head("a/b"),
        lambda: store.get_file("a/b", tmp_path / "file"),
    ]
    with held(tmp_path / "store"):
        for read in reads:
            flushes.clear()
            read()
            assert flushes == ["a/b".rpartition("/")[0]]
        for condition in ({"if_none_match": True}, {"if_match": "not " + etag}):
            flushes.clear()
            with pytest.raises(PreconditionFailed):
                store.put("a/b", b"2", **condition)
            assert flushes == ["a"]


def failing_flush(monkeypatch: pytest.MonkeyPatch, what: str, code: int) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if what in str(Path(f"/proc/self/fd/{handle}").readlink()):
            raise OSError(code, os.strerror(code))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)


def test_a_full_disk_is_an_error_of_which_nothing_is_left(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_flush(monkeypatch, "/.meta/tmp/", errno.ENOSPC)
    with pytest.raises(StoreError, match="No space left") as caught:
        store.put("a/b", b"1", if_none_match=True)
    assert not caught.value.unknown
    assert store.list("") == []
    assert not list((tmp_path / "store" / META / "tmp").iterdir())


def test_a_name_that_may_not_be_durable_is_unknown(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    failing_flush(monkeypatch, "/store/a", errno.EIO)
    with pytest.raises(StoreError) as caught:
        store.put("a/b", b"1", if_none_match=True)
    assert caught.value.unknown


# Files


def test_objects_are_plain_files_at_their_keys(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("a/b.json", b"body", if_none_match=True, put_id="p")
    assert (tmp_path / "store/a/b.json").read_bytes() == b"body"
    assert (tmp_path / "store/a/b.json").stat().st_nlink == 1


def test_what_another_store_object_put_is_known(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("a", b"1", put_id="p")
    assert DirectoryStore(tmp_path / "store").head("a").put_id == "p"


@pytest.mark.parametrize("missing", [False, True])
def test_without_extended_attributes_the_process_remembers_its_own_puts(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    for name in ("setxattr", "getxattr"):
        if missing:
            monkeypatch.delattr(os, name)
        else:
            monkeypatch.setattr(os, name, refuse)
    monkeypatch.setattr(directory, "REMEMBERED_PUTS", 2)
    first = store.put("a", b"1", if_none_match=True, put_id="p1")
    with pytest.raises(PreconditionFailed):
        store.put("a", b"2", if_none_match=True, put_id="p2")
    assert store.head("a").put_id == "p1"
    other = DirectoryStore(tmp_path / "store")
    assert other.head("a").put_id is None
    other.put("a", b"2", if_match=first, put_id="p3")
    assert store.head("a").put_id is None
    for key in ("b", "c"):
        store.put(key, b"1", put_id=key)
    assert store.head("c").put_id == "c"
    assert len(store._puts) == 2


def test_what_killed_writers_left_is_cleared_away_once_it_is_old(store: DirectoryStore, tmp_path: Path) -> None:
    tmp = tmp_path / "store" / META / "tmp"
    for name, age in {"old": directory.STALE_SECONDS + 60, "new": 60}.items():
        (tmp / name).write_bytes(b"1")
        os.utime(tmp / name, (time.time() - age,) * 2)
    DirectoryStore(tmp_path / "store")
    assert [path.name for path in tmp.iterdir()] == ["new"]


def test_empty_folders_are_no_folders_and_old_ones_are_cleared_away(store: DirectoryStore, tmp_path: Path) -> None:
    for key in ("p/old/1", "p/new/1", "p/full/1", "p/deep/er/1"):
        store.put(key, b"1")
    for key in ("p/old/1", "p/new/1", "p/deep/er/1"):
        store.delete(key)
    os.utime(tmp_path / "store/p/old", (time.time() - 7200,) * 2)
    assert store.list_dirs("p/") == ["full"]
    assert sorted(path.name for path in (tmp_path / "store/p").iterdir()) == ["deep", "full", "new"]
    store.put("p/old/1", b"2", if_none_match=True)
    assert store.list_dirs("p/") == ["full", "old"]


def test_a_folder_that_vanishes_before_it_is_used_is_made_again(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = directory._make_folders
    left = [3]

    def vanishing(folder: Path) -> None:
        real(folder)
        if left[0]:
            left[0] -= 1
            folder.rmdir()

    monkeypatch.setattr(directory, "_make_folders", vanishing)
    store.put("a/b", b"1", if_none_match=True)
    assert store.get("a/b").body == b"1"
    left[0] = 10**9
    with pytest.raises(StoreError, match="does not stay"):
        store.put("c/d", b"1", if_none_match=True)


def test_a_key_can_not_be_object_and_folder(store: DirectoryStore) -> None:
    store.put("a/b", b"1")
    for key in ("a", "a/b/c"):
        for condition in ({}, {"if_none_match": True}):
            with pytest.raises(StoreError) as caught:
                store.put(key, b"1", **condition)  # type: ignore[arg-type]
            assert caught.value.lasting


def test_files_that_are_no_objects_are_passed_over(store: DirectoryStore, tmp_path: Path) -> None:
    store.put("a/b", b"1")
    for name in (".DS_Store", "a/.hidden", "a/with space", "a/b\n"):
        (tmp_path / "store" / name).write_bytes(b"1")
    assert store.list("") == ["a/b"]


def test_an_error_of_the_file_system_is_an_error_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="file"):
        DirectoryStore(tmp_path / "file")
