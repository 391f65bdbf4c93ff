"""A repository of 50,000 files, on tmpfs: what a task costs, always against bare git in the same run (design page 6).

Each figure is the median of several rounds in which ours and bare git's take turns, so that what else the machine does hits both.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.git import changes, projects, snapshots, worktrees
from app.git.repo import Worktree
from tests.git.lab import Lab, git, git_bytes, worker_views

FILES = 50_000
ROUNDS = 7

pytestmark = pytest.mark.bench


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    shared = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="byre-bench-", dir=shared if shared.is_dir() else None))
    work = base / "work"
    git(base, "init", "-q", "-b", "main", str(work))
    stream = ["commit refs/heads/main\ncommitter T <t@example.com> 1700000000 +0000\ndata 5\nfirst\n"]
    for n in range(FILES):
        text = f"file {n}\n" * 20
        stream.append(f"M 100644 inline d{n % 250}/s{n % 7}/f{n}.txt\ndata {len(text)}\n{text}\n")
    git_bytes(work, "fast-import", "--quiet", data="".join(stream).encode())
    git(work, "reset", "-q", "--hard")
    views = worker_views(base / "private", base)
    try:
        yield Lab(base, views, projects.open_directory(views, str(work), [base]), work, work)
    finally:
        shutil.rmtree(base, ignore_errors=True)


def ratio(what: str, limit: float, ours: Callable[[int], None], bare: Callable[[int], None]) -> None:
    """Measures both in turns; fails over `limit`."""
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for n in range(ROUNDS):
        for name, call in (("ours", ours), ("bare", bare)) if n % 2 else (("bare", bare), ("ours", ours)):
            started = time.perf_counter()
            call(n)
            times[name].append(time.perf_counter() - started)
    one, other = (statistics.median(times[name]) for name in ("ours", "bare"))
    print(f"\n{what}: {one * 1000:.0f} ms, bare git {other * 1000:.0f} ms, ratio {one / other:.2f} (limit {limit})")
    assert one / other <= limit


def test_task_creation(lab: Lab) -> None:
    made: list[tuple[Worktree, str]] = []

    def ours(n: int) -> None:
        made.append(lab.task(f"Task {n}"))

    def bare(n: int) -> None:
        git(lab.work, "worktree", "add", "-q", "-b", f"bare-{n}", str(lab.base / f"bare-{n}"))

    ratio("task creation", 1.25, ours, bare)
    for worktree, branch in made:
        worktrees.remove(worktree, branch)
    for n in range(ROUNDS):
        git(lab.work, "worktree", "remove", "--force", str(lab.base / f"bare-{n}"))


def touch(top: Path, n: int) -> None:
    """Changes 20 files, others than before."""
    for k in range(20):
        number = n * 20 + k
        (top / f"d{number % 250}" / f"s{number % 7}" / f"f{number}.txt").write_text(f"changed in round {n}\n")


def test_snapshot_after_twenty_changes_and_changes(lab: Lab) -> None:
    worktree, branch = lab.task()
    bare_top = lab.base / "bare"
    git(lab.work, "worktree", "add", "-q", "-b", "bare", str(bare_top))
    index = lab.base / "bare.index"
    shutil.copy2(lab.work / ".git" / "worktrees" / "bare" / "index", index)
    env = {"GIT_INDEX_FILE": str(index)}
    snapshots.take(worktree, 1, "")
    git(bare_top, "add", "-A", env=env)
    tree = [""]

    def ours(n: int) -> None:
        touch(worktree.path, n)
        taken = snapshots.take(worktree, n + 2, "")
        tree[0] = taken.looked.tree

    def bare(n: int) -> None:
        touch(bare_top, n)
        git(bare_top, "add", "-A", env=env)
        made = git(bare_top, "write-tree", env=env)
        git(bare_top, "commit-tree", "-p", "HEAD", "-m", "snapshot", made)

    ratio("snapshot after 20 changes", 1.1, ours, bare)
    tip = lab.tip

    def compare(n: int) -> None:
        assert len(changes.between(worktree, tip, tree[0])) == 20 * ROUNDS

    def bare_compare(n: int) -> None:
        git(lab.work, "diff-tree", "-r", "--numstat", tip, tree[0])

    ratio("changes between two trees", 1.5, compare, bare_compare)
    worktrees.remove(worktree, branch)
