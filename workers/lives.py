"""What a worker's life leaves on disk about its harnesses, and killing what a dead life left running.

Rules: one directory per life, `STATE_DIR/life-RANDOM`, with a file `owner` (worker and guardian) and one per living harness,
named by its marker. A file is replaced whole, never written in place, and is not synced: after a crash of the machine there is
nothing left to kill. A life whose worker is alive is never touched, so that all workers of a host may share one STATE_DIR.
Standard library only: the guardian imports this.
"""

# No pathlib: it would add a third to the guardian's memory and start-up.
# ruff: noqa: PTH103, PTH104, PTH106, PTH108, PTH118, PTH123, PTH208

from __future__ import annotations

import contextlib
import os
import time

from workers import proctree

_OWNER = "owner"


class StillAlive(Exception):
    """Processes that outlived SIGKILL for longer than the caller would wait. `pids` names them."""

    def __init__(self, pids: list[int]) -> None:
        super().__init__(f"still alive after SIGKILL: {', '.join(map(str, pids)) or 'unknown'}")
        self.pids = pids


def begin(state_dir: str | os.PathLike[str], name: str, worker_pid: int) -> str:
    """Makes the directory of a new life, owned by `worker_pid`, and answers its path. `name` must be unique (random)."""
    process = proctree.look(worker_pid)
    if process is None:
        raise ProcessLookupError(worker_pid)
    fresh, life = os.path.join(state_dir, f".life-{name}"), os.path.join(state_dir, f"life-{name}")
    os.makedirs(fresh, mode=0o700)
    _write(fresh, _OWNER, {"space": proctree.namespace(), "worker": _identity(worker_pid)})
    os.rename(fresh, life)  # with its owner from the first moment: a life without one would look dead
    return life


def own(life: str, guardian_pid: int) -> None:
    """Adds the guardian to the life's owners."""
    _write(life, _OWNER, _read(os.path.join(life, _OWNER)) | {"guardian": _identity(guardian_pid)})


def record(life: str, marker: str, pids: dict[str, int]) -> None:
    """Notes a harness: `pids` by role ("keeper", "leader"); each is stored with its start time. Empty before the spawn."""
    _write(life, marker, {role: _identity(pid) for role, pid in pids.items()})


def forget(life: str, marker: str) -> None:
    """Removes the note of a harness that is proven dead."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(life, marker))


def end(life: str) -> None:
    """Removes a life that left nothing."""
    with contextlib.suppress(OSError):  # two that clean up at once, or files that aren't ours
        for name in os.listdir(life):
            os.unlink(os.path.join(life, name))
        os.rmdir(life)


def kill_leftovers(state_dir: str | os.PathLike[str], timeout: float = 10.0) -> int:
    """Kills what the dead lives under `state_dir` left running, and removes their directories; answers how many it killed.

    Hits only the recorded processes (same pid and start time), what descends from them, their sessions and groups, and whatever
    carries a recorded marker. `timeout` is seconds for all of it. Raises StillAlive if something outlived that.
    """
    killed, until = 0, time.monotonic() + timeout
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.listdir(state_dir)):
            if entry.startswith("life-"):
                killed += _kill_life(os.path.join(state_dir, entry), until)
    return killed


def kill_recorded(life: str, until: float) -> int:
    """Kills everything that is recorded in `life`, whoever owns it, until a look finds none of it; answers how many it hit.

    `until` is a time of the monotonic clock; past it StillAlive is raised.
    """
    hit: set[tuple[int, int]] = set()
    while True:
        left = _recorded(life)
        if not left:
            return len(hit)
        for process in left:
            if proctree.strike(process):
                hit.add((process.pid, process.start))
        if time.monotonic() > until:
            raise StillAlive([process.pid for process in left])
        time.sleep(0.005)


def _kill_life(life: str, until: float) -> int:
    owner = _read(os.path.join(life, _OWNER))
    space = owner.get("space", "")
    if space.split("/")[0] == proctree.namespace().split("/")[0] and space != proctree.namespace():
        return 0  # another container of this boot: its pids are not ours to judge
    if space == proctree.namespace():
        if _runs(owner.get("worker")):
            return 0
        # The guardian has seen its worker die and is at work: let it finish what it can prove better than we can.
        while _runs(owner.get("guardian")) and time.monotonic() < until - 1.0:
            time.sleep(0.005)
        killed = kill_recorded(life, until)
    else:
        killed = 0  # an earlier boot: nothing of it runs
    end(life)
    return killed


def _recorded(life: str) -> list[proctree.Process]:
    """The living processes of the harnesses of `life`; the keepers only when nothing else is left, for orphans come to them."""
    try:
        markers = [name for name in os.listdir(life) if name != _OWNER and not name.startswith(".")]
    except FileNotFoundError:
        return []
    everyone = proctree.everyone() if markers else {}
    found: dict[int, proctree.Process] = {}
    keepers: dict[int, proctree.Process] = {}
    for marker in markers:
        note = _read(os.path.join(life, marker))
        leader, keeper = (_same(everyone, note.get(role)) for role in ("leader", "keeper"))
        members = proctree.kin(everyone, leader.pid if leader else None, marker)
        for root in (leader, keeper):
            members += proctree.descendants(everyone, root.pid) if root else []
        if leader and leader.alive:
            members.append(leader)
        if keeper and keeper.alive:
            keepers[keeper.pid] = keeper
        found.update((member.pid, member) for member in members)
    return list(found.values()) or list(keepers.values())


def _identity(pid: int) -> str:
    process = proctree.look(pid)
    return f"{pid} {process.start if process else 0}"


def _runs(identity: str | None) -> bool:
    pid, start = map(int, (identity or "0 0").split())
    return bool(pid) and proctree.is_alive(pid, start)


def _same(among: dict[int, proctree.Process], identity: str | None) -> proctree.Process | None:
    pid, start = map(int, (identity or "0 0").split())
    process = among.get(pid)
    return process if process is not None and process.start == start else None


def _write(life: str, name: str, fields: dict[str, str]) -> None:
    fresh = os.path.join(life, f".{name}")
    with open(fresh, "w", encoding="utf-8") as out:
        out.writelines(f"{key}={value}\n" for key, value in fields.items())
    os.rename(fresh, os.path.join(life, name))


def _read(path: str) -> dict[str, str]:
    try:
        with open(path, encoding="utf-8") as lines:
            return dict(line.rstrip("\n").split("=", 1) for line in lines if "=" in line)
    except FileNotFoundError:
        return {}
