"""`byre check --session`: what is whole passes, whatever lives it has had; what isn't is named, every object of every kind."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core import chain as chains
from app.core.errors import Missing
from app.log import heads
from app.log.compact import DAY, Compactor
from app.log.segment import Segment, decode, encode
from app.log.verify import Findings
from app.services.checking import SessionCheck
from app.store import keys
from app.store.keys import LogName
from tests.log.lab import Lab, all_keys
from tests.log.test_compact import clean, compactor
from tests.services.test_garbage import CIPHER, busy
from workers import checkpoint


def check(lab: Lab) -> Findings:
    return SessionCheck(
        lab.store,
        lab.name,
        lambda tenant, session, ckpt: checkpoint.read(lab.store, tenant, session, ckpt),
        lambda tenant, chunk: checkpoint.chunk(lab.store, tenant, chunk, cipher=CIPHER),
        pace=lab.clock.pace,
    ).run()


def log_only(lab: Lab) -> Findings:
    """For labs whose checkpoints are stubs."""
    return SessionCheck(lab.store, lab.name, lambda *_: {"files": []}, lambda *_: None, pace=lab.clock.pace).run()


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40))
def test_what_lives_pass(seed: int, steps: int) -> None:
    lab = Lab(seed)
    lab.live(steps, unarchived=True)
    assert log_only(lab).bad == []
    compactor(lab).run(lab.name)
    assert log_only(lab).bad == []
    lab.clock.at += 2 * DAY
    clean(lab)
    assert log_only(lab).bad == []
    lab.live(5)
    assert log_only(lab).bad == []


def whole(tmp: Path) -> Lab:
    """A session with large and small segments, key indexes, checkpoints and a pending input, in several generations."""
    lab, _ = busy(tmp)
    lab.turn(2)
    Compactor(lab.main, lab.clock.now, large_events=15).run(lab.name)
    lab.clock.at += 2 * DAY
    clean(lab)
    lab.say(key="kept")
    lab.coord.flush()
    place = lab.say()
    pending = keys.pending("acme", lab.name.session or "", place.gen, place.offset)
    lab.store.put(pending, orjson.dumps({"id": place.id}))
    found = check(lab)
    assert found.bad == []
    assert len(lab.chain) > 2
    return lab


def test_a_flipped_bit_in_any_object_is_named(tmp_path: Path) -> None:
    lab = whole(tmp_path)
    all_objects = all_keys(lab.store, "tenants/acme/")
    kinds = set()
    for key in all_objects:
        body = lab.store.get(key).body
        if key == keys.head_object(lab.name) or body.startswith(b'{"fence"'):
            continue  # a head has no checksum; what a fence says doesn't matter
        for at in {0, len(body) // 2, len(body) - 1}:
            broken = bytearray(body)
            broken[at] ^= 1
            lab.store.put(key, bytes(broken))
            assert key in {bad for bad, _ in check(lab).bad}, (key, at)
        lab.store.put(key, body[: len(body) // 2])
        assert key in {bad for bad, _ in check(lab).bad}, f"{key} truncated"
        lab.store.put(key, body)
        kinds.add(key.split("/")[4] if "/sessions/" in key else key.split("/")[2])
    assert kinds == {"log", "compact", "keys", "checkpoints", "native", "pending"}
    assert check(lab).bad == []


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    lab = whole(tmp_path)
    for key in all_keys(lab.store, "tenants/acme/"):
        if key == keys.head_object(lab.name) or "/pending/" in key:
            continue
        body = lab.store.get(key).body
        found = decode(key, body) if "/log/" in key else None
        covered = not isinstance(found, Segment) or _covered(lab, found)
        latest = lab.main.view(lab.name).state.checkpoint
        assert latest
        if not covered or ("/checkpoints/" in key and keys.last_part(key) != latest.id):
            continue  # what a restore has left behind, and an older checkpoint, may be gone
        if key == lab.small()[-1]:
            continue  # the end of the log looks as if nothing had followed
        lab.store.delete(key)
        assert check(lab).bad, key
        lab.store.put(key, body)
    assert check(lab).bad == []


def _covered(lab: Lab, found: Segment) -> bool:
    limit = chains.end(lab.chain, found.gen)
    return limit is None or found.first < limit


def test_forgeries_with_good_checksums_are_named() -> None:
    lab = Lab(3)
    lab.say(key="a")
    lab.turn(3)
    lab.say()
    assert log_only(lab).bad == []
    key = lab.small()[2]
    true = decode(key, lab.store.get(key).body)
    assert isinstance(true, Segment)
    other = lab.writer.draft("assistant.message", {"text": "never said"}).line()
    for what, change in {
        "state": {"state": {**true.state, "status": "failed"}},
        "prev": {"prev": "0" * 64},
        "count of bytes": {"total": true.total + 1},
        "can't be read": {"lines": [b'{"type":"x"}', *true.lines[1:]]},
        "checksum": {"lines": [other, *true.lines[1:]]},
    }.items():
        forged = dataclasses.replace(true, **{"sha256": "", **change})  # type: ignore[arg-type]
        lab.store.put(key, encode(forged)[0])
        bad = log_only(lab).bad
        assert bad, what
        if what in ("state", "can't be read"):
            assert any(what in why for _, why in bad), bad
    lab.store.put(key, encode(true)[0])
    assert log_only(lab).bad == []


def test_a_frozen_one_says_why_and_one_that_is_not_there_is_missing(tmp_path: Path) -> None:
    lab = whole(tmp_path)
    heads.freeze(lab.store, lab.name, "the/object", lab.clock.pace)
    assert any("the/object" in note for note in check(lab).notes)
    heads.thaw(lab.store, lab.name, lab.clock.pace)
    assert not any("frozen" in note for note in check(lab).notes)
    lab.name = LogName("acme", "0" * 32)
    with pytest.raises(Missing):
        check(lab)


def test_a_head_that_cant_be_read_is_named(tmp_path: Path) -> None:
    lab = whole(tmp_path)
    key = keys.head_object(lab.name)
    body = orjson.loads(lab.store.get(key).body)
    for broken in (b"{", orjson.dumps({**body, "chain": "x"}), orjson.dumps({**body, "chain": body["chain"][::-1]})):
        lab.store.put(key, broken)
        assert [bad for bad, _ in check(lab).bad][:1] == [key]
