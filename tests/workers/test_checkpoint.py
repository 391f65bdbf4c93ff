"""Native state comes back exactly, or not at all; and only what has changed is sent."""

from __future__ import annotations

import json
import os
import random
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from app.core.errors import Corrupt, Missing, Unavailable
from app.store import keys
from app.store.cipher import Cipher
from app.store.contract import Store
from app.store.directory import DirectoryStore
from app.store.faults import Fault, Faulty
from app.store.memory import MemoryStore
from workers import checkpoint
from workers.checkpoint import CHUNK_BYTES, Manifest

MIB = 1 << 20
CIPHER = Cipher("secret")


class Counting(MemoryStore):
    """Counts what goes over the wire."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = self.received = 0

    def put(self, key: str, body: bytes, **options: Any) -> str:
        self.sent += len(body)
        return super().put(key, body, **options)

    def get(self, key: str) -> Any:
        got = super().get(key)
        self.received += len(got.body)
        return got


def save(store: Store, files: dict[str, Path], **options: Any) -> Manifest:
    return checkpoint.save(store, "t", "s", list(files.items()), cipher=CIPHER, meta={"gen": 1, "offset": 7}, **options)


def restore(store: Store, ckpt: str, root: Path) -> Manifest:
    return checkpoint.restore(store, "t", "s", ckpt, root, cipher=CIPHER)


def content(root: Path) -> dict[str, bytes | str]:
    """Files and links below `root`."""
    return {
        os.fsencode(path.relative_to(root)).decode(errors="replace"): f"-> {path.readlink()}"
        if path.is_symlink()
        else path.read_bytes()
        for path in root.rglob("*")
        if path.is_symlink() or path.is_file()
    }


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def test_what_was_saved_comes_back(tmp_path: Path, home: Path) -> None:
    bodies = {
        "state.jsonl": secrets.token_bytes(3 * CHUNK_BYTES + 17),
        "deep/er/exact": secrets.token_bytes(2 * CHUNK_BYTES),
        "deep/empty": b"",
        "small": b"x",
    }
    for name, body in bodies.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(body)
    (home / "small").chmod(0o4755)
    store = DirectoryStore(tmp_path / "store")
    saved = save(store, {name: home / name for name in bodies})
    assert restore(store, saved["id"], tmp_path / "back") == saved == checkpoint.read(store, "t", "s", saved["id"])
    assert content(tmp_path / "back") == bodies
    assert (tmp_path / "back/small").stat().st_mode & 0o7777 == 0o755
    assert saved["meta"] == {"gen": 1, "offset": 7}
    assert saved["bytes"] == sum(map(len, bodies.values()))
    assert [(entry["path"], entry["size"], len(entry["chunks"])) for entry in saved["files"]] == [
        ("state.jsonl", 3 * CHUNK_BYTES + 17, 4),
        ("deep/er/exact", 2 * CHUNK_BYTES, 2),
        ("deep/empty", 0, 0),
        ("small", 1, 1),
    ]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("size", [20_000_000, 20 * MIB, 20 * MIB - 1000])
def test_of_20_mb_and_50_kb_appended_at_most_1_1_mib_is_uploaded(home: Path, tmp_path: Path, size: int, told: bool) -> None:
    """Incompressible, so that nothing but the chunks helps."""
    state = home / "state.jsonl"
    state.write_bytes(random.Random(1).randbytes(size))
    store = Counting()
    first = save(store, {"state.jsonl": state})
    assert store.sent >= size
    with state.open("ab") as file:
        file.write(random.Random(2).randbytes(50_000))
    store.sent = store.received = 0
    second = save(store, {"state.jsonl": state}, previous=first if told else None)
    assert 50_000 < second["uploaded"] <= store.sent <= 1.1 * MIB
    assert store.received == 0
    restore(store, second["id"], tmp_path / "back")
    assert (tmp_path / "back/state.jsonl").read_bytes() == state.read_bytes()
    restore(store, first["id"], tmp_path / "first")
    assert (tmp_path / "first/state.jsonl").read_bytes() == state.read_bytes()[:size]


def test_a_chunk_that_two_files_share_is_sent_once(home: Path) -> None:
    body = secrets.token_bytes(CHUNK_BYTES)
    (home / "a").write_bytes(body + body)
    (home / "b").write_bytes(body)
    store = MemoryStore()
    saved = save(store, {"a": home / "a", "b": home / "b"})
    assert len(store.list(keys.native_prefix("t"))) == 1
    assert saved["uploaded"] < 1.1 * MIB


def test_transcripts_shrink(home: Path) -> None:
    (home / "a").write_text("\n".join(json.dumps({"number": number, "text": "hello " * 10}) for number in range(20_000)))
    saved = save(MemoryStore(), {"a": home / "a"})
    assert saved["uploaded"] < saved["bytes"] / 10


def test_nothing_is_stored_in_clear(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"sk-very-secret")
    store = DirectoryStore(tmp_path / "store")
    save(store, {"a": home / "a"})
    for path in (tmp_path / "store").rglob("*"):
        assert path.is_dir() or b"very-secret" not in path.read_bytes()


# What is damaged is refused by name

Damage = Callable[[bytes], bytes]


def flip(at: int) -> Damage:
    return lambda body: body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if at >= 0 else flip(len(body) + at)(body)


@pytest.mark.parametrize(
    "damage", [flip(0), flip(3), flip(8), flip(500), flip(-1), lambda body: body[:-1], lambda body: body[:10], lambda _: b""]
)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_damaged_chunk_is_named_and_refused(home: Path, tmp_path: Path, damage: Damage, which: int) -> None:
    (home / "a").write_bytes(secrets.token_bytes(2 * CHUNK_BYTES + 1000))
    store = DirectoryStore(tmp_path / "store")
    saved = save(store, {"a": home / "a"})
    key = keys.native_chunk("t", saved["files"][0]["chunks"][which])
    path = tmp_path / "store" / key
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(Corrupt) as caught:
        restore(store, saved["id"], tmp_path / "back")
    assert caught.value.key == key
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "store"]


def test_a_missing_chunk_is_named_and_refused(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    key = keys.native_chunk("t", saved["files"][0]["chunks"][0])
    store.delete(key)
    with pytest.raises(Corrupt, match="missing") as caught:
        restore(store, saved["id"], tmp_path / "back")
    assert caught.value.key == key


def test_a_chunk_in_anothers_place_is_refused(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    (home / "b").write_bytes(b"other")
    store = MemoryStore()
    saved = save(store, {"a": home / "a", "b": home / "b"})
    one, other = (keys.native_chunk("t", entry["chunks"][0]) for entry in saved["files"])
    store.put(one, store.get(other).body)
    with pytest.raises(Corrupt) as caught:
        restore(store, saved["id"], tmp_path / "back")
    assert caught.value.key == one


def test_a_chunk_that_is_not_what_its_name_says_is_refused(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    key = keys.native_chunk("t", saved["files"][0]["chunks"][0])
    store.put(key, CIPHER.encrypt(zstandard.ZstdCompressor().compress(b"tilt"), key.encode()))
    with pytest.raises(Corrupt, match="name says") as caught:
        restore(store, saved["id"], tmp_path / "back")
    assert caught.value.key == key


def test_another_secret_is_refused(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    with pytest.raises(Corrupt, match="secret key"):
        checkpoint.restore(store, "t", "s", saved["id"], tmp_path / "back", cipher=Cipher("other"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda b: b[:-1],
        lambda b: b"",
        lambda b: b"[]",
        lambda b: b.replace(b'"gen":1', b'"gen":2'),
        lambda b: b.replace(b'"a"', b'"b"'),
    ],
)
def test_a_damaged_manifest_is_named_and_refused(home: Path, tmp_path: Path, damage: Damage) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    key = keys.checkpoint("t", "s", saved["id"])
    damaged = damage(store.get(key).body)
    assert damaged != store.get(key).body
    store.put(key, damaged)
    with pytest.raises(Corrupt) as caught:
        restore(store, saved["id"], tmp_path / "back")
    assert caught.value.key == key


def test_a_manifest_in_anothers_place_is_refused(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    one, other = save(store, {"a": home / "a"}), save(store, {"a": home / "a"})
    store.put(keys.checkpoint("t", "s", one["id"]), store.get(keys.checkpoint("t", "s", other["id"])).body)
    with pytest.raises(Corrupt):
        restore(store, one["id"], tmp_path / "back")


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a/../../x", "", "x\0"])
def test_a_manifest_can_not_name_files_elsewhere(home: Path, tmp_path: Path, path: str) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    saved["files"][0]["path"] = path
    saved["sha256"] = checkpoint._digest(saved)
    store.put(keys.checkpoint("t", "s", saved["id"]), json.dumps(saved).encode())
    with pytest.raises(Corrupt):
        restore(store, saved["id"], tmp_path / "back")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]


@pytest.mark.parametrize("names", [["../x"], ["/x"], [""], ["a\0"], ["a", "a"]])
def test_names_that_could_not_be_restored_are_not_saved(home: Path, names: list[str]) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    with pytest.raises(ValueError, match="name"):
        checkpoint.save(store, "t", "s", [(name, home / "a") for name in names], cipher=CIPHER, meta={})
    assert store.list("") == []


def test_there_is_no_such_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(Missing):
        restore(MemoryStore(), "0" * 32, tmp_path / "back")


# The directory that it is restored to


def test_only_an_empty_directory_is_restored_to(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    store = MemoryStore()
    saved = save(store, {"a": home / "a"})
    with pytest.raises(FileExistsError):
        restore(store, saved["id"], home)
    (tmp_path / "empty").mkdir()
    (tmp_path / ".empty.0000.restoring").mkdir()
    restore(store, saved["id"], tmp_path / "empty")
    assert content(tmp_path / "empty") == {"a": b"text"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "home"]


# What harnesses may have made


def test_links_come_back_as_links_and_are_never_followed(home: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"host secret")
    (home / "a").write_bytes(b"text")
    (home / "link").symlink_to("a")
    (home / "out").symlink_to(tmp_path / "secret")
    (home / "dangling").symlink_to("./none")
    store = MemoryStore()
    saved = save(store, {name: home / name for name in ("link", "out", "dangling", "a")})
    restore(store, saved["id"], tmp_path / "back")
    expected = {"a": b"text", "link": "-> a", "out": f"-> {tmp_path}/secret", "dangling": "-> none"}
    assert content(tmp_path / "back") == expected
    assert saved["bytes"] == 4


def test_what_is_no_plain_file_inside_is_left_out_and_said(home: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_bytes(b"host secret")
    (home / "in").symlink_to(tmp_path / "outside")
    (home / "a").write_bytes(b"text")
    (home / "folder").mkdir()
    os.mkfifo(home / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(home / "socket"))
    files = {name: home / name for name in ("a", "in/secret", "folder", "pipe", "socket")}
    store = MemoryStore()
    saved = save(store, files, within=home)
    assert [entry["path"] for entry in saved["files"]] == ["a"]
    assert [entry["path"] for entry in saved["left_out"]] == ["in/secret", "folder", "pipe", "socket"]
    restore(store, saved["id"], tmp_path / "back")
    assert content(tmp_path / "back") == {"a": b"text"}


def test_names_that_are_not_utf_8(home: Path, tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    (home / name).write_bytes(b"text")
    (home / "link").symlink_to(name)
    store = MemoryStore()
    saved = save(store, {name: home / name, "link": home / "link", "größe": home / name})
    restore(store, saved["id"], tmp_path / "back")
    assert (tmp_path / "back" / name).read_bytes() == b"text"
    assert (tmp_path / "back/link").read_bytes() == b"text"
    assert (tmp_path / "back/größe").read_bytes() == b"text"


# A store that fails


@pytest.mark.parametrize("fault", [Fault.LOST_ANSWER, Fault.RACED, Fault.ERROR_BODY, Fault.LATE])
def test_a_store_that_stumbles(home: Path, tmp_path: Path, fault: Fault) -> None:
    (home / "a").write_bytes(secrets.token_bytes(3 * CHUNK_BYTES))
    inner = MemoryStore()
    store = Faulty(inner, rates={fault: 0.3}, rng=random.Random(3))
    saved = save(store, {"a": home / "a"}, previous={"files": []})
    store.land()
    restore(inner, saved["id"], tmp_path / "back")
    assert content(tmp_path / "back") == {"a": (home / "a").read_bytes()}


def test_a_manifest_comes_only_after_all_its_chunks(home: Path) -> None:
    (home / "a").write_bytes(secrets.token_bytes(8 * CHUNK_BYTES))
    inner = MemoryStore()
    with pytest.raises(Unavailable):
        save(Faulty(inner, script=[None, None, None, Fault.REFUSED]), {"a": home / "a"}, previous={"files": []})
    assert inner.list(keys.checkpoint_prefix("t", "s")) == []


def test_a_store_that_is_down_is_unavailable(home: Path, tmp_path: Path) -> None:
    (home / "a").write_bytes(b"text")
    inner = MemoryStore()
    saved = save(inner, {"a": home / "a"})
    down = Faulty(inner, rates={Fault.REFUSED: 1.0})
    calls: list[Callable[[], object]] = [
        lambda: save(down, {"a": home / "a"}),
        lambda: restore(down, saved["id"], tmp_path / "back"),
        lambda: restore(Faulty(inner, script=[None, Fault.REFUSED]), saved["id"], tmp_path / "back"),
    ]
    for call in calls:
        with pytest.raises(Unavailable):
            call()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home"]
