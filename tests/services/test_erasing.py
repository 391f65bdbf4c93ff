"""Erasing a session: nothing of it is left, in the store, its trash or Redis; what others have stays; a late writer brings nothing back."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from app.core.errors import Missing
from app.log import heads
from app.log.compact import Compactor
from app.log.segment import is_fence
from app.services.erasing import Erased, Eraser
from app.store import keys
from app.store.memory import MemoryStore
from tests.log.lab import Lab, all_keys
from tests.log.test_compact import Hooked
from tests.services.test_garbage import busy, gc
from workers import checkpoint

SECRET = "correct horse battery staple"


def eraser(lab: Lab, store: object = None) -> Eraser:
    where = store or lab.store
    return Eraser(
        where,  # type: ignore[arg-type]
        lab.coord,  # type: ignore[arg-type]
        lambda tenant, session, ckpt: checkpoint.read(lab.store, tenant, session, ckpt),
        lab.clock.pace,
    )


def left(lab: Lab) -> list[str]:
    """What is left of the session but for its head and fences."""
    found = all_keys(lab.store, "tenants/acme/")
    mine = [key for key in found if (lab.name.session or "") in key and key != keys.head_object(lab.name)]
    return [key for key in mine if not is_fence(lab.store.get(key).body)]


def test_nothing_is_left_and_others_keep_theirs(tmp_path: Path) -> None:
    store = MemoryStore()
    lab, _ = busy(tmp_path, 5, store)
    place = lab.say(SECRET, key="k")
    lab.store.put(keys.pending("acme", lab.name.session or "", place.gen, place.offset), orjson.dumps({"id": place.id}))
    (tmp_path / "b").mkdir()
    other, made = busy(tmp_path / "b", 6, store)
    own = lab.save(b"only here", {"gen": 0, "offset": 1})
    Compactor(lab.main, lab.clock.now).run(lab.name)
    lab.clock.at += 3 * 86_400
    gc(lab)
    before = {key: store.get(key).body for key in all_keys(store, "")}
    counted = eraser(lab).erase(lab.name, really=False)
    assert {key: store.get(key).body for key in all_keys(store, "")} == before
    assert eraser(lab).erase(lab.name, really=True) == counted
    assert counted.objects > 6
    assert counted.chunks == 1, "the other chunks are the other session's, too"
    assert counted.trashed > 60
    assert own
    assert left(lab) == []
    assert orjson.loads(store.get(keys.head_object(lab.name)).body).keys() == {"id", "erased", "chain", "epoch", "put_ids"}
    for key in all_keys(store, ""):
        assert SECRET.encode() not in store.get(key).body
    assert SECRET.encode() not in repr(lab.coord.memory.logs[lab.name.text]).encode()
    assert all(other.restorable(ckpt) for ckpt in made), "also what is in the trash"
    with pytest.raises(Missing):
        heads.load(store, lab.name)
    assert eraser(lab).erase(lab.name, really=True) == Erased(0, 0, 0)


def test_a_writer_that_comes_late_brings_nothing_back() -> None:
    lab = Lab(3)
    lab.say()
    lab.output(3)
    lab.output(1, archive=False)
    slow_calls: list[int] = []

    def erased_meanwhile(_number: int, what: str, key: str) -> None:
        if what == "put" and "/log/" in key and not slow_calls:
            slow_calls.append(1)
            eraser(lab).erase(lab.name, really=True)

    slow = lab.log(Hooked(lab.store, erased_meanwhile))
    with pytest.raises(Missing):
        slow.archive(lab.name)
    assert slow_calls
    assert left(lab) == []
    with pytest.raises(Missing):
        lab.log().archive(lab.name)
    lab.coord.flush()
    with pytest.raises(Missing):
        lab.log().view(lab.name)
    assert left(lab) == []


def test_after_a_crash_at_any_step_it_can_be_done_again(tmp_path: Path) -> None:
    at = 1
    while True:
        (tmp_path / str(at)).mkdir()
        lab, _ = busy(tmp_path / str(at))

        def die(number: int, _what: str, _key: str, at: int = at) -> None:
            if number >= at:
                raise SystemError("dead")

        try:
            eraser(lab, Hooked(lab.store, die)).erase(lab.name, really=True)
        except SystemError:
            eraser(lab).erase(lab.name, really=True)
            assert left(lab) == []
            assert all_keys(lab.store, keys.native_prefix("acme")) == []
            assert lab.coord.memory.logs[lab.name.text].tail == {}
            at += 11
            continue
        break
    assert at > 100


def test_what_another_session_may_need_stays_and_it_is_said(tmp_path: Path) -> None:
    store = MemoryStore()
    lab, _ = busy(tmp_path, 5, store)
    (tmp_path / "b").mkdir()
    other, made = busy(tmp_path / "b", 6, store)
    store.put(keys.checkpoint("acme", other.name.session or "", made[0]), b"rubbish")
    done = eraser(lab).erase(lab.name, really=True)
    assert done.chunks == 0
    assert other.name.session
    assert other.name.session in done.kept
    assert len(all_keys(store, keys.native_prefix("acme"))) > 0
    lab.name = lab.name._replace(session="0" * 32)
    with pytest.raises(Missing):
        eraser(lab).erase(lab.name, really=True)
