"""Random work in a worktree, as an agent or a person may do it: strategies of steps, and doing them with plain files and plain git."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from tests.git.lab import git, sh

NAMES = [
    b"a.txt", b"README.md", b"crlf.txt", b"run.sh", b"link", b"bin.dat", b"dir/b.txt", b"dir/sub/deep.txt", b"old name.txt",
    "neu ü.txt".encode(), b"latin-\xe9.txt", b"\xff\xfe", b'quo"te', b'"front', b"tab\there", b"new\nline", b"-dash", b":colon", b"*star?",
    b"back\\slash", b"trailing ", b"dir/.hidden", b"ignored/kept.txt", b"many.log",
]  # fmt: skip
CONTENTS = [
    b"", b"one\n", b"one\ntwo\nthree\n", b"x\n" * 50, b"x\n" * 49 + b"y\n", b"a\r\nb\r\n", b"no newline", b"\x00\x01\x02binary\xff" * 20,
    "ünï\n".encode(), b"latin \xe9\n", b"<<<<<<< not a conflict\n", b"long line " * 500 + b"\n",
]  # fmt: skip
KINDS = [
    "write", "append", "delete", "move", "git mv", "chmod", "symlink", "directory", "stage", "stage all", "intend", "unstage", "untrack",
    "commit", "nested", "stash", "detach", "branch", "skip",
]  # fmt: skip
ENDINGS = ["", "merge", "merge and settle one", "rebase", "cherry-pick", "revert"]

Step = tuple[str, bytes, bytes, bytes]
steps = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(CONTENTS)),
    min_size=1,
    max_size=14,
)
endings = st.sampled_from(ENDINGS)


def prepare(base: Path) -> dict[str, str]:
    """The files that the project begins with."""
    del base
    return {
        "README.md": "hello\n",
        "a.txt": "1\n2\n3\n",
        "old name.txt": "x\n" * 50,
        ".gitignore": "ignored/\n*.log\n",
        "crlf.txt": "a\r\nb\r\n",
        "dir/b.txt": "b\n" * 20,
        "conflict.txt": "base\n",
        ".gitattributes": "*.dat -diff\nrun.sh text eol=lf\n",
    }


def do(top: Path, work: Sequence[Step]) -> None:
    """Does the steps; those that make no sense in the present state do nothing."""
    for kind, one, other, content in work:
        _step(top, kind, one, other, content)


def _step(top: Path, kind: str, one: bytes, other: bytes, content: bytes) -> None:
    path = Path(os.fsdecode(os.path.join(os.fsencode(top), one)))  # noqa: PTH118
    target = Path(os.fsdecode(os.path.join(os.fsencode(top), other)))  # noqa: PTH118
    try:
        if kind == "write":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        elif kind == "append":
            with path.open("ab") as file:
                file.write(content)
        elif kind == "delete":
            path.unlink()
        elif kind == "move":
            target.parent.mkdir(parents=True, exist_ok=True)
            path.rename(target)
        elif kind == "chmod":
            path.chmod(path.stat().st_mode ^ 0o111)
        elif kind == "symlink":
            path.unlink(missing_ok=True)
            path.symlink_to(os.fsdecode(other))
        elif kind == "directory":
            path.unlink(missing_ok=True)
            path.mkdir(parents=True)
            (path / "inside").write_bytes(content)
        elif kind == "nested":
            place = top / "nested"
            if not place.exists():
                place.mkdir()
                sh(place, "git init -q . && git commit -q --allow-empty -m nested")
        else:
            _git_step(top, kind, one, other)
    except OSError:
        pass


def _git_step(top: Path, kind: str, one: bytes, other: bytes) -> None:
    words: dict[str, list[str | bytes]] = {
        "git mv": ["mv", "-f", "--", one, other],
        "stage": ["--literal-pathspecs", "add", "--", one],
        "stage all": ["add", "-A"],
        "intend": ["--literal-pathspecs", "add", "-N", "--", one],
        "unstage": ["--literal-pathspecs", "reset", "-q", "--", one],
        "untrack": ["--literal-pathspecs", "rm", "-q", "-r", "--cached", "--", one],
        "commit": ["commit", "-q", "-m", "work"],
        "stash": ["stash", "push", "-q"],
        "detach": ["checkout", "-q", "--detach"],
        "branch": ["checkout", "-q", "-b", f"side/{top.name[:6]}"],
        "skip": ["update-index", "--skip-worktree", "--", one],
    }
    git(top, *words[kind], ok=False)


def end(top: Path, ending: str) -> None:
    """Leaves a merge, rebase, cherry-pick or revert in the middle, with a conflict, if everything before lets git begin it."""
    if not ending:
        return
    git(top, "add", "-A", ok=False)
    git(top, "commit", "-q", "-m", "all so far", ok=False)
    head = git(top, "rev-parse", "HEAD")
    sh(
        top,
        f"""
        git checkout -q --detach {head} 2>/dev/null
        echo theirs > conflict.txt; echo new > theirs-only.txt; git add -f conflict.txt theirs-only.txt; git commit -q -m theirs
        git tag -f byre-test-theirs-{top.name[:8]} >/dev/null
        git checkout -q - 2>/dev/null || git checkout -q {head}
        echo ours > conflict.txt; git add -f conflict.txt; git commit -q -m ours
        """,
    )
    theirs = f"byre-test-theirs-{top.name[:8]}"
    words = {
        "merge": ["merge", theirs],
        "merge and settle one": ["merge", theirs],
        "rebase": ["rebase", theirs],
        "cherry-pick": ["cherry-pick", theirs],
        "revert": ["revert", "--no-edit", f"{head}~0"],
    }[ending]
    git(top, *words, ok=False)
    if ending == "merge and settle one":
        (top / "conflict.txt").write_text("settled\n")
        git(top, "add", "conflict.txt", ok=False)


def clear_nested(top: Path) -> None:
    """Empties nested repositories: what is in them doesn't travel."""
    place = top / "nested"
    if (place / ".git").is_dir():
        shutil.rmtree(place)
        place.mkdir()
