"""What git knows of a worktree beside its files: HEAD, what is staged, conflicts, a merge or rebase under way.

`capture` reads it into a `State`, `put_back` makes a rebuilt worktree agree with it. What is staged is a tree (so it shares its objects
with everything else) plus the entries that no tree can hold: conflict stages, intent-to-add, and promises like "skip worktree".

Rules: files are taken by name only, up to `_MAX_BYTES` in all, never through a link. Commits that they name are kept with the bundle.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from app.git import paths
from app.git.errors import GitFailed
from app.git.repo import Worktree
from app.git.run import BYRE

_FILES = (
    "MERGE_HEAD", "MERGE_MSG", "MERGE_MODE", "MERGE_RR", "SQUASH_MSG", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "ORIG_HEAD",
    "BISECT_LOG", "BISECT_START", "BISECT_TERMS", "BISECT_NAMES", "BISECT_EXPECTED_REV", "BISECT_ANCESTORS_OK",
)  # fmt: skip
_DIRECTORIES = ("rebase-merge", "rebase-apply", "sequencer")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_OBJECT = re.compile(rb"\b(?:[0-9a-f]{64}|[0-9a-f]{40})\b")
_STASH = re.compile(r"(?:[0-9a-f]+) ([0-9a-f]{40}|[0-9a-f]{64}) .*\t(.*)\Z")
_MAX_BYTES = 4 * 2**20
_MAX_FILES = 2000
_EMPTY_BLOBS = (
    b"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391",
    b"473a0f4c3be8a93681a267e3b1e9a7dcda1185436fe141f7749120a303721813",
)


@dataclass(frozen=True)
class State:
    """Git's state of a worktree. All of it is JSON (`to_json`); paths are as people see them, contents base64.

    `staged` is the tree of the index; `conflicts` are its entries of stages 1 to 3 as [mode, object, stage, path]; `intended` are paths
    added with intent only, `skipped` those with skip-worktree; `files` git's own state files; `commits` those that the files name;
    `stashes` commit and message of what was stashed on the task's branch.
    """

    head: str | None
    ref: str | None
    staged: str | None
    conflicts: tuple[tuple[str, str, int, str], ...] = ()
    intended: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    commits: tuple[str, ...] = ()
    stashes: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The state as JSON values."""
        return json.loads(json.dumps(asdict(self)))  # type: ignore[no-any-return]

    @staticmethod
    def from_json(value: dict[str, Any]) -> State:
        """What `to_json` gave."""
        fields = dict(value)
        fields["conflicts"] = tuple((mode, oid, stage, path) for mode, oid, stage, path in value["conflicts"])
        fields["stashes"] = tuple((commit, message) for commit, message in value["stashes"])
        for name in ("intended", "skipped", "commits"):
            fields[name] = tuple(value[name])
        return State(**fields)


@dataclass(frozen=True)
class _Index:
    staged: str | None
    conflicts: tuple[tuple[str, str, int, str], ...] = ()
    intended: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()


def capture(worktree: Worktree) -> State:
    """The state of a worktree, its index read but not touched. Raises GitError."""
    head = worktree.head()
    files = _files(worktree.git_dir)
    index = _index(worktree)
    contents = {name: base64.b64encode(content).decode() for name, content in files.items()}
    named = sorted({found.decode() for content in files.values() for found in _OBJECT.findall(content)})
    commits = _commits(worktree, named[:_MAX_FILES]) if named else ()
    stashes = _stashes(worktree)
    return State(
        head.commit, head.ref, index.staged, index.conflicts, index.intended, index.skipped, contents, commits, stashes
    )


def put_back(worktree: Worktree, state: State) -> None:
    """Makes index and state files of a worktree, whose files and HEAD are there already, those of `state`. Raises GitError.

    The worktree's index must hold the files as they are (its stat cache is kept for what is staged as it is).
    """
    if state.staged:
        worktree.run("read-tree", "--reset", state.staged)
    else:
        worktree.run("read-tree", "--empty")
    _put_entries(worktree, state)
    for name, content in state.files.items():
        parts = name.split("/")
        if len(parts) > 2 or not all(map(_NAME.match, parts)) or (parts[0] not in _FILES and parts[0] not in _DIRECTORIES):
            continue
        path = worktree.git_dir / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    _stash_again(worktree, state)


def _put_entries(worktree: Worktree, state: State) -> None:
    if state.conflicts:
        lines = [f"{mode} {oid} {stage}\t".encode() + paths.parse(path) + b"\0" for mode, oid, stage, path in state.conflicts]
        # A path with conflicts has no stage 0.
        gone = [b"0 " + b"0" * len(state.conflicts[0][1]) + b" 0\t" + paths.parse(path) + b"\0" for *_, path in state.conflicts]
        worktree.run("update-index", "-z", "--index-info", input=b"".join([*gone, *lines]))
    if state.intended:
        data = b"\0".join(map(paths.parse, state.intended)) + b"\0"
        worktree.run("add", "--intent-to-add", "--pathspec-from-file=-", "--pathspec-file-nul", input=data, ok=())
    if state.skipped:
        data = b"\0".join(map(paths.parse, state.skipped)) + b"\0"
        worktree.run("update-index", "--skip-worktree", "-z", "--stdin", input=data, ok=())


def _stashes(worktree: Worktree) -> tuple[tuple[str, str], ...]:
    """Stashes are the repository's; those of a task are known by its branch's name, or by the one that it is on. Oldest first."""
    log = worktree.repo.common / "logs" / "refs" / "stash"
    with contextlib.suppress(OSError):
        if log.is_file() and log.stat().st_size <= _MAX_BYTES:
            found = [_STASH.match(line) for line in log.read_text("utf-8", "replace").splitlines()]
            own, on = f"-{worktree.task[-8:]}:", f" {(worktree.head().ref or '').removeprefix('refs/heads/')}:"
            return tuple((match[1], match[2]) for match in found if match and (own in match[2] or on in match[2]))
    return ()


def _stash_again(worktree: Worktree, state: State) -> None:
    known = {commit for commit, _ in _stashes(worktree)}
    for commit, message in state.stashes:
        if commit not in known:
            (worktree.repo.common / "logs").mkdir(exist_ok=True)
            worktree.run("stash", "store", "-m", message, commit, environment=BYRE, ok=())


def _files(git_dir: Path) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    total = 0
    names = [name for name in _FILES if (git_dir / name).exists()]
    for directory in _DIRECTORIES:
        place = git_dir / directory
        if place.is_dir() and not place.is_symlink():
            names += [f"{directory}/{entry.name}" for entry in sorted(place.iterdir())[:_MAX_FILES]]
    for name in names:
        path = git_dir / name
        with contextlib.suppress(OSError):
            about = path.lstat()
            if not stat.S_ISREG(about.st_mode) or not _NAME.match(path.name) or total + about.st_size > _MAX_BYTES:
                continue
            found[name] = path.read_bytes()
            total += about.st_size
    return found


def _commits(worktree: Worktree, named: list[str]) -> tuple[str, ...]:
    done = worktree.run("cat-file", "--batch-check=%(objectname) %(objecttype)", input="\n".join(named).encode() + b"\n")
    pairs = [line.split() for line in done.text.splitlines()]
    return tuple(pair[0] for pair in pairs if len(pair) == 2 and pair[1] == "commit")


def _index(worktree: Worktree) -> _Index:
    """What the worktree's index says, remembered for as long as the file is the same."""
    own = worktree.git_dir / "index"
    memory = worktree.private / "staged"
    try:
        about = own.stat()
    except OSError:
        return _Index(None)
    stamp = [about.st_mtime_ns, about.st_size, about.st_ino]
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        known = json.loads(memory.read_text())
        if known["stamp"] == stamp:
            conflicts = tuple((mode, oid, stage, path) for mode, oid, stage, path in known["conflicts"])
            return _Index(known["staged"], conflicts, tuple(known["intended"]), tuple(known["skipped"]))
    read = _read_index(worktree, own)
    memory.write_text(json.dumps({"stamp": stamp, **asdict(read)}))
    return read


def _read_index(worktree: Worktree, own: Path) -> _Index:
    copy = worktree.private / "index.read"
    try:
        shutil.copy2(own, copy)
        listed = worktree.run("ls-files", "--stage", "-v", "-z", index=copy).out
        conflicts, skipped = [], []
        for tag, mode, oid, stage, path in _odd(listed):
            if stage != b"0":
                conflicts.append((mode.decode(), oid.decode(), int(stage), paths.show(path)))
            elif tag in b"Ss":
                skipped.append(paths.show(path))
        if conflicts:
            gone = [b"0 " + b"0" * len(conflicts[0][1]) + b" 0\t" + paths.parse(path) + b"\0" for *_, path in conflicts]
            worktree.run("update-index", "-z", "--index-info", index=copy, input=b"".join(gone))
        staged = worktree.run("write-tree", index=copy).text
        return _Index(staged, tuple(conflicts), _intended(worktree, listed, staged), tuple(skipped))
    except (FileNotFoundError, GitFailed):
        # It is being rewritten, or broken by its agent: what HEAD holds is what is surely staged.
        head = worktree.head().commit
        return _Index(worktree.run("rev-parse", f"{head}^{{tree}}").text if head else None)
    finally:
        copy.unlink(missing_ok=True)


def _odd(listed: bytes) -> Iterator[tuple[bytes, bytes, bytes, bytes, bytes]]:
    """Tag, mode, object, stage and path of entries of `git ls-files -s -v -z` that aren't plainly in the index."""
    for entry in listed.split(b"\0"):
        about, tab, path = entry.partition(b"\t")
        if tab and not (entry.startswith(b"H ") and about.endswith(b" 0")):
            tag, mode, oid, stage = about.split(b" ")
            yield tag, mode, oid, stage, path


def _intended(worktree: Worktree, listed: bytes, staged: str) -> tuple[str, ...]:
    """Paths that are in the index as empty files, but not in its tree: added with intent only."""
    if not any(blob in listed for blob in _EMPTY_BLOBS):
        return ()
    entries = (entry.partition(b"\t") for entry in listed.split(b"\0"))
    empty = [path for about, _, path in entries if about.endswith(b" 0") and about[9:-2] in _EMPTY_BLOBS]
    if not empty:
        return ()
    there = set(worktree.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", staged).out.split(b"\0"))
    return tuple(paths.show(path) for path in empty if path not in there)
