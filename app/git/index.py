"""A worktree's private index: what "as if everything were staged" means, kept warm.

It is a copy of the worktree's index, made once, to which every later look adds what has changed. Its stat cache then knows all files that
are still the same, so a look costs one walk over the worktree. `git add` isn't used: it would start git in nested repositories, with their
configuration, and stop at the first file that can't be read. One `git status` finds what is changed, new, ignored or nested, and
`git update-index` takes it in.

Rules: the worktree's own index is only read. Before anything is stored, what is new is measured: over the limits it is refused, with the
folder named. What can't be stored (nested repositories without a commit, files without permission) is left out and listed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from app.core.errors import TooLarge
from app.git import paths
from app.git.errors import GitFailed, GitTooMuch
from app.git.repo import Worktree
from app.git.run import write_once

MAX_NEW_BYTES = 2**30
MAX_NEW_FILES = 100_000
LISTED = 1000  # Ignored and nested paths that are named; beyond that they are counted.
_LEFT_OUT = 20  # Files that can't be stored, before a snapshot is given up.
_SCAN = (
    "status",
    "--porcelain=v2",
    "-z",
    "--untracked-files=all",
    "--no-renames",
    "--ignore-submodules=dirty",
    "--no-ahead-behind",
)


@dataclass
class Found:
    """What a walk over the worktree found, against the private index. Paths are bytes from the top."""

    changed: list[bytes] = field(default_factory=list)
    new: list[bytes] = field(default_factory=list)
    repositories: list[bytes] = field(default_factory=list)  # new ones
    nested: list[bytes] = field(default_factory=list)  # all of them, with submodules
    ignored: list[bytes] = field(default_factory=list)
    ignored_count: int = 0
    left: list[bytes] = field(default_factory=list)
    large: list[bytes] = field(default_factory=list)


class PrivateIndex:
    """The private index of one worktree. Its caller holds the worktree's lock."""

    def __init__(self, worktree: Worktree) -> None:
        self._worktree = worktree
        self.path = worktree.private / "index"
        self._links = worktree.private / "links"  # Paths that were seen as nested repositories, ended by NUL.

    def seed(self) -> None:
        """Makes it from the worktree's own index, or from HEAD where there is none."""
        own = self._worktree.git_dir / "index"
        fresh = self.path.with_name("index.new")
        fresh.unlink(missing_ok=True)
        head = self._worktree.head().commit
        if own.is_file():
            # With its time: git compares a file's time with the index's to find changes within one tick of the clock.
            shutil.copy2(own, fresh)
            self._prepare(fresh)
        elif head:
            self._worktree.run("read-tree", head, index=fresh)
        if fresh.exists():
            fresh.rename(self.path)
        if head:
            self.compare_with(head)

    def compare_with(self, commit: str) -> None:
        """Says which commit the index is closest to: `git status` compares it with HEAD of the view, and that should cost nothing."""
        write_once(self._worktree.view.git_dir / "HEAD", commit + "\n")

    def look(self, *, ignored: bool = True) -> Found:
        """Walks over the worktree. With `ignored`, ignored paths are listed too. Raises TooLarge, GitError."""
        if not self.path.exists() or self._is_sparse():
            self.seed()
        forced = self._follow()
        options = ["--ignored=matching"] if ignored else []
        try:
            done = self._worktree.run(*_SCAN, *options, index=self.path, environment={"GIT_OPTIONAL_LOCKS": "1"})
        except GitTooMuch as error:
            raise _too_large([path for kind, path in _entries(error.begun) if kind == b"?"], 0, self._worktree.path) from None
        found = self._sort(done.out)
        found.changed += forced
        return found

    def take(self, found: Found) -> None:
        """Puts what was found into the index. What can't be put there goes to `found.left`."""
        todo = [[*found.changed, *found.new, *found.repositories]]
        while todo:
            batch = todo.pop()
            try:
                self._update(batch)
            except GitFailed:
                # Which path it was, git says in words only: halves find it.
                if len(batch) > 1:
                    todo += [batch[len(batch) // 2 :], batch[: len(batch) // 2]]
                elif len(found.left) == _LEFT_OUT:
                    raise
                elif batch[0] not in found.repositories:
                    found.left.append(batch[0])

    def tree(self) -> str:
        """The index as a tree."""
        return self._worktree.run("write-tree", index=self.path).text

    def _update(self, batch: list[bytes]) -> None:
        if batch:
            self._worktree.run(
                "update-index", "--add", "--remove", "--replace", "-z", "--stdin",
                index=self.path, input=b"\0".join(batch) + b"\0", seconds=300,
                settings=("core.bigFileThreshold=32m",),  # Larger files are stored in a stream, not in memory.
            )  # fmt: skip

    def _sort(self, answer: bytes) -> Found:
        found, size = Found(), 0
        for kind, path in _entries(answer):
            if kind == b"!":
                found.ignored_count += 1
                if len(found.ignored) < LISTED:
                    found.ignored.append(path)
            elif kind == b"?" and path.endswith(b"/"):
                found.repositories.append(path[:-1])
            else:
                (found.new if kind == b"?" else found.changed).append(path)
                size += _size(self._worktree.path, path)
        if size > MAX_NEW_BYTES or len(found.new) > MAX_NEW_FILES:
            raise _too_large([*found.changed, *found.new], size, self._worktree.path)
        found.large = self._large([*found.changed, *found.new])
        found.nested = self._note_links([*found.repositories, *(path for kind, path in _entries(answer) if kind == b"s")])
        return found

    def _follow(self) -> list[bytes]:
        """Makes the private index track the paths that the worktree's own index tracks, where that has changed.

        Only ignored files make a difference: `git add -f` and `git mv` track them, `git rm --cached` lets them go. Gives the paths that
        must be taken in although a walk doesn't see them.
        """
        own, memory = self._worktree.git_dir / "index", self._worktree.private / "followed"
        try:
            about = own.stat()
        except OSError:
            return []
        stamp = f"{about.st_mtime_ns} {about.st_size} {about.st_ino}"
        known = memory.read_text().split("\n") if memory.exists() else ["", ""]
        if known[0] == stamp:
            return []
        listed = self._worktree.run("ls-files", "-z").out
        digest = hashlib.sha256(listed).hexdigest()
        forced: list[bytes] = []
        if known[1] != digest:
            theirs = set(listed.split(b"\0")) - {b""}
            ours = set(self._worktree.run("ls-files", "-z", index=self.path).out.split(b"\0")) - {b""}
            forced = sorted(theirs - ours)
            self._let_go(sorted(ours - theirs))
        memory.write_text(f"{stamp}\n{digest}")
        return forced

    def _let_go(self, paths: list[bytes]) -> None:
        """Takes those of `paths` out of the index that are ignored now."""
        top = os.fsencode(self._worktree.path)
        there = [path for path in paths if _is_there(top, path)]
        if not there:
            return
        data = b"".join(b"./" + path + b"\0" for path in there)  # So that no name begins with a colon, which would be magic.
        plain = {"GIT_LITERAL_PATHSPECS": "0"}
        ignored = self._worktree.run("check-ignore", "-z", "--stdin", input=data, environment=plain, ok=(0, 1)).out
        if ignored:
            data = b"".join(entry[2:] + b"\0" for entry in ignored.split(b"\0") if entry)
            self._worktree.run("update-index", "--force-remove", "-z", "--stdin", index=self.path, input=data)

    def _large(self, changed: list[bytes]) -> list[bytes]:
        """Those that git-lfs keeps outside of git."""
        if not self._worktree.repo.views.git.lfs or not changed:
            return []
        data = b"\0".join(changed) + b"\0"
        fields = self._worktree.run("check-attr", "--stdin", "-z", "filter", index=self.path, input=data).out.split(b"\0")
        return [path for path, value in zip(fields[0::3], fields[2::3], strict=False) if value == b"lfs"]

    def _prepare(self, index: Path) -> None:
        """Takes back "assume unchanged" (a change of such a file would not be seen, and its work be lost); notes the submodules."""
        listed = self._worktree.run("ls-files", "--stage", "-v", "-z", index=index).out
        # Of each entry the tag, in lower case where git was told not to look, then mode, object and stage; the path behind a tab.
        entries = listed.split(b"\0")
        promised = [_path(entry) for entry in entries if entry[:1].islower()]
        if promised:
            data = b"\0".join(promised) + b"\0"
            self._worktree.run("update-index", "--no-assume-unchanged", "-z", "--stdin", index=index, input=data)
        self._note_links(_path(entry) for entry in entries if entry[2:8] == b"160000")

    def links(self) -> list[bytes]:
        """Paths that were seen as nested repositories or submodules, now or earlier."""
        return self._links.read_bytes().split(b"\0")[:-1] if self._links.exists() else []

    def _note_links(self, links: Iterable[bytes]) -> list[bytes]:
        """Adds to the paths that were seen as nested repositories; gives those that are one now."""
        known = self.links()
        added = [link for link in dict.fromkeys(links) if link not in known]
        if added:
            self._links.write_bytes(b"".join(link + b"\0" for link in [*known, *added]))
        top = os.fsencode(self._worktree.path)
        return [link for link in [*known, *added] if os.path.lexists(b"/".join([top, link, b".git"]))]

    def _is_sparse(self) -> bool:
        """In a sparse worktree the patterns may have changed: the own index knows which files should be there."""
        return (self._worktree.git_dir / "info" / "sparse-checkout").exists()


def _entries(answer: bytes) -> Iterable[tuple[bytes, bytes]]:
    """Kind and path of what `git status --porcelain=v2 -z` says differs from the index; b"c" for changed entries, b"s" for submodules."""
    for entry in answer.split(b"\0"):
        kind = entry[:1]
        if kind in (b"?", b"!"):
            yield kind, entry[2:]
        elif kind == b"1" and entry[3:4] != b".":
            fields = entry.split(b" ", 8)
            yield b"s" if fields[2].startswith(b"S") else b"c", fields[8]
        elif kind == b"u":
            yield b"c", entry.split(b" ", 10)[10]


def _path(entry: bytes) -> bytes:
    return entry.split(b"\t", 1)[1]


def _is_there(top: bytes, path: bytes) -> bool:
    """Whether a path exists, and no directory on its way is a link."""
    place = top
    for part in path.split(b"/")[:-1]:
        place += b"/" + part
        if os.path.islink(place):  # noqa: PTH114 - paths are bytes
            return False
    return os.path.lexists(top + b"/" + path)


def _size(top: Path, path: bytes) -> int:
    with contextlib.suppress(OSError):
        found = os.lstat(os.path.join(os.fsencode(top), path))  # noqa: PTH118 - paths are bytes
        return found.st_size if stat.S_ISREG(found.st_mode) else 0
    return 0


def _too_large(new: list[bytes], size: int, top: Path) -> TooLarge:
    folders: Counter[bytes] = Counter()
    for path in new:
        folders[path.split(b"/")[0]] += (_size(top, path) + 4096) if size else 1
    worst = paths.show(folders.most_common(1)[0][0]) if folders else "?"
    amount = f"{size >> 20} MiB" if size > MAX_NEW_BYTES else f"more than {min(len(new), MAX_NEW_FILES)} files"
    return TooLarge(f"the worktree holds {amount} of new work, most of it in {worst}: remove it or add it to .gitignore")
