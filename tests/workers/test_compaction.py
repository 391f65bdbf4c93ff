"""A worker compacts the log of a session that it gives back, in the background, one at a time, and never fails by it."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from app.core.errors import Corrupt
from app.log.compact import Compacted, Compactor
from app.store.keys import LogName
from tests.log.lab import Lab
from workers.compaction import Compaction


def test_a_released_session_with_many_small_segments_is_compacted() -> None:
    lab = Lab(1)
    for _ in range(70):
        lab.output()
    before = lab.seen()
    with ThreadPoolExecutor(1) as pool:
        Compaction(Compactor(lab.main, lab.clock.now), pool).released(lab.name, lab.main.view(lab.name).arch)
    assert lab.chain[0].boundary == lab.main.view(lab.name).arch
    assert lab.seen() == before


def test_one_at_a_time_and_what_fails_is_no_ones_trouble() -> None:
    ran: list[str | None] = []
    inside, go = threading.Event(), threading.Event()

    class Stub:
        def due(self, name: LogName, upto: int) -> bool:
            ran.append(name.session)
            if name.session == "slow":
                inside.set()
                go.wait(10)
            if name.session == "broken":
                raise Corrupt("a bit", "key")
            return name.session == "due"

        def run(self, name: LogName) -> Compacted:
            ran.append("run")
            raise ValueError("a bug")

    with ThreadPoolExecutor(2) as pool:
        made: Any = Compaction(Stub(), pool)  # type: ignore[arg-type]
        made.released(LogName("t", "slow"), 1)
        assert inside.wait(10)
        pool.submit(made._look, LogName("t", "skipped"), 1).result(10)
        go.set()
    assert ran == ["slow"]
    with ThreadPoolExecutor(1) as pool:
        made = Compaction(Stub(), pool)  # type: ignore[arg-type]
        for session in ("broken", "due", "after"):
            made.released(LogName("t", session), 1)
    assert ran == ["slow", "broken", "due", "run", "after"]
    made.released(LogName("t", "too late"), 1)
    assert ran[-1] == "after"
