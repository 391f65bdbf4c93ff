"""`byre gc`: what it takes nobody needs, what it takes can come back, and whatever happens meanwhile no checkpoint loses a chunk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import ids
from app.core.chain import Generation
from app.core.errors import Corrupt
from app.log import heads
from app.log.segment import Fence, decode
from app.services.garbage import Garbage, undo
from app.services.garbage_tally import Kind, Tally
from app.services.retention import Keep, expired
from app.store import keys, trash
from app.store.cipher import Cipher
from app.store.contract import Absent, Store
from app.store.memory import MemoryStore
from tests.log.lab import Lab, all_keys
from tests.log.test_compact import Hooked
from workers import checkpoint

DAY = 86_400
WEEK = 7 * DAY
CIPHER = Cipher("k" * 32, purpose="native")


def gc(lab: Lab, *, apply: bool = True, keep: Keep = Keep(), store: Store | None = None, window: float = WEEK) -> Tally:  # noqa: B008
    return run(lab, apply=apply, keep=keep, store=store, window=window).tally


def run(lab: Lab, **more: Any) -> Garbage:
    store = more.pop("store", None) or lab.store
    made = Garbage(
        store,
        lambda tenant, session, ckpt: checkpoint.read(store, tenant, session, ckpt),
        now=lab.clock.now,
        pace=lab.clock.pace,
        **{"keep": Keep(), "window": WEEK, "apply": True, **more},
    )
    made.run()
    return made


def counts(tally: Tally) -> dict[Kind, int]:
    return {kind: row[0] for kinds in tally.found.values() for kind, row in kinds.items()}


def everything(store: Store) -> dict[str, bytes]:
    return {key: store.get(key).body for key in all_keys(store, "")}


class Saving(Lab):
    """A lab whose turns save real native state."""

    def __init__(self, tmp: Path, seed: int = 0, store: Store | None = None) -> None:
        super().__init__(seed, store)
        self.tmp = tmp
        self.saved: dict[str, bytes] = {}

    def checkpoint(self, gen: int, offset: int, chunks: list[str] | None = None) -> str:
        body = b"native state %d" % len(self.saved)
        return self.save(body, {"gen": gen, "offset": offset})

    def save(self, body: bytes, meta: dict[str, int], store: Store | None = None) -> str:
        file = self.tmp / "state"
        file.write_bytes(body)
        real = checkpoint.ids.make
        checkpoint.ids.make = lambda _, entropy: real(int(self.clock.at * 1000), entropy)  # type: ignore[assignment]
        try:
            made = checkpoint.save(
                store or self.store, "acme", self.name.session or "", [("home/x", file)], cipher=CIPHER, meta=meta
            )
        finally:
            checkpoint.ids.make = real  # type: ignore[assignment]
        self.saved[made["id"]] = body
        return str(made["id"])

    def restorable(self, ckpt: str) -> bool:
        root = self.tmp / f"r{len(list(self.tmp.iterdir()))}"
        try:
            checkpoint.restore(self.store, "acme", self.name.session or "", ckpt, root, cipher=CIPHER)
        except Corrupt:
            return False
        assert (root / "home" / "x").read_bytes() == self.saved[ckpt]
        return True


def busy(tmp: Path, seed: int = 5, store: Store | None = None) -> tuple[Saving, list[str]]:
    """A session with four checkpoints, the last of which a restore has left behind, and more small segments than one likes."""
    lab = Saving(tmp, seed, store)
    made = []
    for _ in range(4):
        lab.say(key=f"k{len(made)}")
        made.append(lab.turn(20))
        lab.clock.at += 60
    lab.restore(made[2])
    lab.say()
    return lab, made


def test_a_dry_run_says_what_an_applied_one_does_and_changes_nothing(tmp_path: Path) -> None:
    lab, made = busy(tmp_path)
    lab.clock.at += 3 * DAY
    before = everything(lab.store)
    dry = gc(lab, apply=False)
    assert everything(lab.store) == before
    wet = gc(lab)
    assert counts(dry) == counts(wet)
    assert dry.total() == wet.total()
    assert dry.compacted == wet.compacted == 1
    assert counts(wet) == {Kind.LEFT: wet.found["acme"][Kind.LEFT][0], Kind.CHECKPOINT: 1, Kind.CHUNK: 1}
    assert wet.found["acme"][Kind.LEFT][0] > 5
    assert all(lab.restorable(ckpt) for ckpt in made[:3])
    again = gc(lab)
    assert counts(again) == {}
    assert again.notes == []


def test_small_segments_go_a_day_after_they_were_merged(tmp_path: Path) -> None:
    lab, _ = busy(tmp_path)
    before = lab.seen()
    assert gc(lab).compacted == 1
    assert lab.seen() == before
    lab.clock.at += DAY / 2
    assert Kind.MERGED not in counts(gc(lab))
    lab.clock.at += DAY
    done = counts(gc(lab))
    assert done[Kind.MERGED] > 60
    assert lab.seen() == before
    assert any(isinstance(decode(key, lab.store.get(key).body), Fence) for key in lab.small())


def test_undo_brings_everything_back(tmp_path: Path) -> None:
    lab, _ = busy(tmp_path)
    gc(lab)
    lab.clock.at += 3 * DAY
    before = everything(lab.store)
    done = run(lab)
    assert done.tally.total()[0] > 60
    assert undo(lab.store, None, lab.clock.pace) == (done.run_id, done.tally.total()[0])
    assert everything(lab.store) == before
    assert undo(lab.store, None, lab.clock.pace) == (None, 0)


def test_trash_is_emptied_after_its_window(tmp_path: Path) -> None:
    lab, _ = busy(tmp_path)
    lab.clock.at += 3 * DAY
    moved = gc(lab).total()[0]
    assert len(all_keys(lab.store, keys.trash_prefix("acme"))) == moved
    lab.clock.at += WEEK - 1
    assert Kind.TRASH not in counts(gc(lab))
    lab.clock.at += 2
    assert counts(gc(lab))[Kind.TRASH] == moved


def test_what_an_undo_may_bring_back_is_not_emptied(tmp_path: Path) -> None:
    """A chunk has been in the trash for long; a checkpoint that names it came, went into the trash as well, and may come back."""
    lab, made = busy(tmp_path)
    doomed = lab.saved[made[3]]
    lab.clock.at += 3 * DAY
    gc(lab)
    chunk = keys.native_chunk("acme", hashlib.sha256(doomed).hexdigest())
    with pytest.raises(Absent):
        lab.store.head(chunk)
    session = lab.name.session or ""
    [copy] = [each for each in all_keys(lab.store, keys.trash_prefix("acme")) if "/checkpoints/" in each]
    late = lab.store.get(copy).body
    lab.store.put(keys.checkpoint("acme", session, made[3]), late)
    lab.clock.at += WEEK + 1
    gc(lab)
    assert undo(lab.store, None, lab.clock.pace)[1] >= 1
    assert lab.restorable(made[3])


def test_other_tenants_and_other_sessions_keep_theirs(tmp_path: Path) -> None:
    store = MemoryStore()
    lab, made = busy(tmp_path, 5, store)
    (tmp_path / "b").mkdir()
    other, theirs = busy(tmp_path / "b", 6, store)
    lab.clock.at += 3 * DAY
    gc(lab)
    assert all(other.restorable(ckpt) for ckpt in theirs[:3])
    assert all(lab.restorable(ckpt) for ckpt in made[:3])
    only = Garbage(store, lambda *_: {}, keep=Keep(), window=WEEK, now=lab.clock.now, apply=True, pace=lab.clock.pace)
    assert only.run(["nobody"]).total() == (0, 0)


# Retention


@pytest.mark.parametrize(("keep", "left"), [(Keep(), 3), (Keep(newest=1), 1), (Keep(newest=2), 2), (Keep(seconds=2 * DAY), 1)])
def test_retention(tmp_path: Path, keep: Keep, left: int) -> None:
    lab, made = busy(tmp_path)
    lab.clock.at += 3 * DAY
    gc(lab, keep=keep)
    found = [keys.last_part(key) for key in all_keys(lab.store, keys.checkpoint_prefix("acme", lab.name.session or ""))]
    # the one that the session would go on from is the third; the newest one of all was left behind, but may stay as the newest
    assert made[2] in found
    assert len(set(found) & set(made[:3])) == left
    assert all(lab.restorable(ckpt) for ckpt in found)


def test_the_current_one_stays_also_behind_newer_ones_of_lost_turns(tmp_path: Path) -> None:
    lab, made = busy(tmp_path)
    orphans = []
    for _ in range(3):
        lab.clock.at += 60
        orphans.append(lab.checkpoint(0, 1))
    lab.clock.at += 3 * DAY
    gc(lab, keep=Keep(newest=1))
    found = [keys.last_part(key) for key in all_keys(lab.store, keys.checkpoint_prefix("acme", lab.name.session or ""))]
    assert found == [made[2], orphans[-1]]


@given(st.integers(1, 5), st.lists(st.integers(0, 10), min_size=1, max_size=12), st.integers(0, 11))
def test_the_current_the_newest_and_the_young_always_stay(newest: int, ages: list[int], current: int) -> None:
    now = 2_000_000_000.0
    made = {
        ids.make(int((now - age * DAY / 2) * 1000), bytes([i] * 10)): {"meta": {"gen": 0, "offset": 3}}
        for i, age in enumerate(ages)
    }
    latest = sorted(made)[current % len(made)]
    for keep in (Keep(newest), Keep(seconds=newest * DAY), Keep(newest, DAY)):
        gone = expired(keep, (Generation(0, 0, "a"),), made, [latest], now)
        assert latest not in gone
        assert max(made) not in gone
        assert all(now - ids.time_ms(ckpt) / 1000 > DAY for ckpt in gone)
        assert gone == sorted(gone, reverse=True)
    assert expired(Keep(), (Generation(0, 0, "a"),), made, [latest], now) == []


# Races with savers


def test_a_checkpoint_that_relies_on_a_chunk_which_goes_meanwhile_is_whole(tmp_path: Path) -> None:
    """At each call of a run a save finds the doomed chunk, or not; its manifest is written only when the run is over."""
    at = 1
    while True:
        lab, made = busy(tmp_path / str(at) if (tmp_path / str(at)).mkdir() is None else tmp_path)
        doomed = lab.saved[made[3]]
        lab.clock.at += 3 * DAY
        saved: list[str] = []

        class Slow(Hooked):
            """Writes its manifest when it is told."""

            held: Callable[[], None] | None = None

            def put(self, key: str, body: bytes, **more: Any) -> str:
                if "/checkpoints/" in key:
                    self.held = lambda: lab.store.put(key, body, **more) and None  # noqa: B023
                    return "etag"
                return super().put(key, body, **more)

        slow = Slow(lab.store, lambda *_: None)

        def during(number: int, _what: str, _key: str, lab: Saving = lab, at: int = at) -> None:
            if number == at:
                saved.append(lab.save(doomed, {"gen": 0, "offset": 1}, slow))  # noqa: B023

        store = Hooked(lab.store, during)
        gc(lab, store=store)
        if not saved:
            break
        assert slow.held
        slow.held()
        assert lab.restorable(saved[0]), f"saved during call {at}"
        lab.clock.at += WEEK + 1
        gc(lab)
        assert lab.restorable(saved[0]), "also when the trash is emptied"
        assert lab.store.head(keys.native_chunk("acme", hashlib.sha256(doomed).hexdigest()))
        at += 7
    assert at > 50


def test_a_checkpoint_that_became_the_current_one_meanwhile_is_put_back(tmp_path: Path) -> None:
    lab, made = busy(tmp_path)
    lab.clock.at += 3 * DAY

    def during(_number: int, what: str, key: str) -> None:
        if what == "put" and "/trash/" in key and key.endswith(f"{made[0]}.json"):
            lab.main.archive(lab.name)
            while lab.main.view(lab.name).state.queue:
                lab.turn(0)
            lab.restore(made[0])

    gc(lab, keep=Keep(newest=1), store=Hooked(lab.store, during))
    assert lab.restorable(made[0]), "found in the trash"
    done = gc(lab, keep=Keep(newest=1))
    assert done.put_back >= 2
    assert lab.store.head(keys.checkpoint("acme", lab.name.session or "", made[0]))
    lab.clock.at += 2 * WEEK
    gc(lab, keep=Keep(newest=1))
    assert lab.restorable(made[0])


def test_a_manifest_that_cant_be_read_keeps_all_chunks(tmp_path: Path) -> None:
    lab, made = busy(tmp_path)
    key = keys.checkpoint("acme", lab.name.session or "", made[0])
    body = lab.store.get(key).body
    lab.store.put(key, body.replace(b'"size"', b'"sise"'))
    lab.clock.at += 3 * DAY
    done = gc(lab)
    assert Kind.CHUNK not in counts(done)
    assert any(made[0] in note for note in done.notes)
    assert lab.store.get(key).body != body, "nothing is repaired"


def test_a_frozen_session_and_one_without_its_head_are_left_alone(tmp_path: Path) -> None:
    lab, made = busy(tmp_path)
    lab.clock.at += 3 * DAY
    heads.freeze(lab.store, lab.name, "somewhere", lab.clock.pace)
    before = everything(lab.store)
    done = gc(lab)
    assert counts(done) == {}
    assert everything(lab.store) == before
    lab.store.delete(keys.head_object(lab.name))
    before = everything(lab.store)
    assert counts(gc(lab)) == {}
    assert everything(lab.store) == before
    assert made


# The rest


def test_pending_inputs(tmp_path: Path) -> None:
    lab, _ = busy(tmp_path)
    session = lab.name.session or ""
    state = lab.main.view(lab.name).state
    waits = state.queue[0]
    assert isinstance(waits.offset, int)
    gone = lab.clock.id()
    lab.store.put(keys.pending("acme", session, waits.gen, waits.offset), orjson.dumps({"id": waits.id}))
    lab.store.put(keys.pending("acme", session, 0, 3), orjson.dumps({"id": gone}))
    lab.store.put(keys.pending("acme", session, 0, 4), b"rubbish")
    assert Kind.PENDING not in counts(gc(lab)), "a young one may be of an input that isn't in the log yet"
    lab.clock.at += 2 * DAY
    lab.store.put(keys.pending("acme", session, 7, 7), orjson.dumps({"id": lab.clock.id()}))
    done = gc(lab)
    assert counts(done)[Kind.PENDING] == 1
    left = all_keys(lab.store, keys.pending_prefix("acme"))
    assert [keys.parse_pending(key).offset for key in left] == [4, 7, waits.offset] or len(left) == 3
    assert keys.pending("acme", session, 0, 3) not in left


def test_of_an_erased_session_everything_goes_for_good(tmp_path: Path) -> None:
    lab, _ = busy(tmp_path)
    key = keys.head_object(lab.name)
    lab.store.put(key, orjson.dumps({**orjson.loads(lab.store.get(key).body), "erased": True}))
    done = gc(lab)
    assert counts(done)[Kind.ERASED] > 60
    left = all_keys(lab.store, keys.session_prefix("acme", lab.name.session or ""))
    assert key in left
    assert all(each == key or isinstance(decode(each, lab.store.get(each).body), Fence) for each in left)
    assert len(left) > 1, "fences stay, for a stalled writer must meet them"
    assert not [each for each in all_keys(lab.store, keys.trash_prefix("acme")) if "/sessions/" in each]


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6))
def test_readers_never_notice(seed: int) -> None:
    lab = Lab(seed)
    for _ in range(4):
        lab.live(8)
        before = lab.seen()
        Garbage(
            lab.store, lambda *_: {"files": []}, keep=Keep(1), window=DAY, now=lab.clock.now, apply=True, pace=lab.clock.pace
        ).run()
        assert lab.seen() == before
        lab.clock.at += 0.8 * DAY


def test_find_looks_at_the_newest_run_first() -> None:
    store = MemoryStore()
    key = keys.native_chunk("acme", "ab" * 32)
    with pytest.raises(Absent):
        trash.find(store, key)
    store.put(keys.trashed("acme", "r1", key), b"old")
    store.put(keys.trashed("acme", "r2", key), b"new")
    assert trash.find(store, key).body == b"new"
    assert keys.parse_trashed(keys.trashed("acme", "r2", key)) == ("acme", "r2", key)
    for bad in ("tokens/x", keys.trashed("acme", "r2", key), keys.native_chunk("other", "ab" * 32)):
        with pytest.raises(ValueError):
            keys.trashed("acme", "r1", bad)
