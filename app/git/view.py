"""A repository as our git sees it: its objects and refs, with a configuration that we wrote.

A repository's own configuration can name programs in some hundred ways (filters, fsmonitor, diff and merge drivers, ssh commands, aliases,
upload-pack, includes of further files), and an agent may write to it, also while our git starts. So it is not read by our git at all. For
each git directory we keep a small one of our own whose `objects`, `refs` and so on are links to the repository's, and whose `config` holds
only the settings in `_KEYS` with values of the right form: those that say how files are compared and stored, none that names a program.

Rules: a view is made by `Views.of` only; views lie in our private directory. HEAD of a view is ours too: what the repository's HEAD is,
`head.py` says. A filter that a repository configures doesn't run (`filters` names those); git-lfs is ours, and runs where it is installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from app.core.errors import Invalid
from app.git import remotes
from app.git.errors import GitFailed, GitTooMuch
from app.git.run import Git, View, write_once

_CONFIG_BYTES = 2**20
_BOOL = re.compile(r"(?i)(true|false|yes|no|on|off|[01])?\Z")
_KEYS = {
    "core.repositoryformatversion": re.compile(r"[01]\Z"),
    "core.filemode": _BOOL,
    "core.symlinks": _BOOL,
    "core.ignorecase": _BOOL,
    "core.precomposeunicode": _BOOL,
    "core.trustctime": _BOOL,
    "core.checkstat": re.compile(r"(?i)(default|minimal)\Z"),
    "core.autocrlf": re.compile(r"(?i)(true|false|yes|no|on|off|[01]|input)\Z"),
    "core.eol": re.compile(r"(?i)(lf|crlf|native)\Z"),
    "core.excludesfile": re.compile(r"[^\0\n]{1,4096}\Z"),
    "core.attributesfile": re.compile(r"[^\0\n]{1,4096}\Z"),
    "core.sparsecheckout": _BOOL,
    "core.sparsecheckoutcone": _BOOL,
    "extensions.objectformat": re.compile(r"(sha1|sha256)\Z"),
}
# Extensions that change nothing for a view. Any other is refused: without knowing it we could damage the repository.
_HARMLESS = {"extensions.noop", "extensions.preciousobjects", "extensions.worktreeconfig", "extensions.relativeworktrees"}
_LINKED = ("objects", "refs", "packed-refs", "shallow", "logs", "worktrees", "info/exclude", "info/attributes")
_FILTER = re.compile(r"filter\.(.+)\.(?:clean|smudge|process)\Z", re.S)
_LFS = """[filter "lfs"]
\tclean = git-lfs clean -- %f
\tsmudge = git-lfs smudge -- %f
\tprocess = git-lfs filter-process
\trequired = true
"""

Config = list[tuple[str, str]]
_Stamp = tuple[tuple[int, int, int] | None, ...]


class Views:
    """The views of one worker. Several workers may share the private directory."""

    def __init__(self, git: Git, roots: Sequence[Path] = ()) -> None:
        """`roots`: directories that repositories may borrow objects from (alternates)."""
        self.git = git
        self._roots = tuple(roots)
        self._root = git.private / "views"
        self._root.mkdir(exist_ok=True, mode=0o700)
        self._known: dict[Path, _Stamp] = {}

    def of(
        self, common: Path, git_dir: Path | None = None, *, work_tree: Path | None = None, index: Path | None = None
    ) -> View:
        """The view of a repository (`common`: its own directory), or of one of its worktrees (`git_dir`, `work_tree`).

        `index` is the index file that calls use. Raises Invalid if the repository can't be seen so, and says why.
        """
        git_dir = git_dir or common
        place = self._root / hashlib.sha256(os.fsencode(git_dir)).hexdigest()[:24]
        files = (common / "config", git_dir / "config.worktree", common / "objects" / "info" / "alternates")
        stamp = tuple(map(_stamp, files))
        if self._known.get(git_dir) != stamp or not place.is_dir():
            self._make(place, common, git_dir)
            self._known[git_dir] = stamp
        return View(place, work_tree, index)

    def forget(self, git_dir: Path) -> None:
        """Removes the view of a git directory that is gone."""
        self._known.pop(git_dir, None)
        shutil.rmtree(self._root / hashlib.sha256(os.fsencode(git_dir)).hexdigest()[:24], ignore_errors=True)

    def config(self, file: Path) -> Config:
        """All entries of one configuration file, names in lower case but for the middle part; includes aren't followed."""
        if not file.is_file():
            return []
        try:
            done = self.git.run(None, "config", "--file", str(file), "--list", "-z", seconds=10, limit=_CONFIG_BYTES)
        except (GitFailed, GitTooMuch):
            raise Invalid("the repository's configuration can't be read", "repo_path") from None
        entries = []
        for entry in done.out.split(b"\0"):
            if entry:
                name, _, value = os.fsdecode(entry).partition("\n")
                entries.append((name, value))
        return entries

    def filters(self, common: Path) -> list[str]:
        """Names of the filters other than git-lfs that the repository configures: they are not run."""
        found = [_FILTER.match(name) for name, _ in self.config(common / "config")]
        return sorted({match[1] for match in found if match} - {"lfs"})

    def _make(self, place: Path, common: Path, git_dir: Path) -> None:
        _check(common)
        self._check_alternates(common / "objects", 0)
        text = self._text(self.config(common / "config"), self.config(git_dir / "config.worktree"))
        if place.is_dir():
            write_once(place / "config", text)
            return
        fresh = Path(tempfile.mkdtemp(prefix="new-", dir=self._root))
        (fresh / "info").mkdir()
        (fresh / "HEAD").write_text("ref: refs/heads/byre/none\n")
        (fresh / "config").write_text(text)
        if self.git.lfs:
            (common / "lfs").mkdir(exist_ok=True)
            (fresh / "lfs").symlink_to(common / "lfs")
        for name in _LINKED:
            (fresh / name).symlink_to(common / name)
        (fresh / "info" / "sparse-checkout").symlink_to(git_dir / "info" / "sparse-checkout")
        (fresh / "index").symlink_to(git_dir / "index")
        try:
            fresh.rename(place)
        except OSError:  # Somebody else made it meanwhile.
            shutil.rmtree(fresh)
            write_once(place / "config", text)

    def _check_alternates(self, objects: Path, depth: int) -> None:
        """Raises Invalid if objects are borrowed from a place that this repository has no business in."""
        file = objects / "info" / "alternates"
        if not file.exists():
            return
        with file.open("rb") as content:
            lines = content.read(_CONFIG_BYTES).split(b"\n")
        for line in lines:
            if line and not line.startswith(b"#"):
                place = remotes.resolved(objects / os.fsdecode(line))
                if place is None or not remotes.within(place, self._roots) or depth == 5:
                    raise Invalid("the repository borrows objects from outside of the repository roots", "repo_path")
                self._check_alternates(place, depth + 1)

    def _text(self, common: Config, own: Config) -> str:
        values: dict[str, str] = {}
        for name, value in [*common, *own]:
            if name in _KEYS:
                if _KEYS[name].match(value):
                    values[name] = value
                elif name == "core.repositoryformatversion":
                    raise Invalid("the repository's format is one that is not supported", "repo_path")
            elif name.startswith("extensions.") and not _harmless(name, value):
                raise Invalid(
                    f"the repository uses the extension {name.split('.', 1)[1][:40]}, which is not supported", "repo_path"
                )
        lines = ["[core]\n\tbare = true\n"]  # A worktree, where there is one, is named with each call.
        for name, value in values.items():
            section, key = name.split(".")
            quoted = value.replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'[{section}]\n\t{key} = "{quoted}"\n' if value else f"[{section}]\n\t{key}\n")
        return "".join(lines) + (_LFS if self.git.lfs else "")


def _harmless(name: str, value: str) -> bool:
    return name in _HARMLESS or (name == "extensions.refstorage" and value == "files")


def _check(common: Path) -> None:
    """Raises Invalid unless objects and refs are the repository's own directories."""
    for name in ("objects", "refs"):
        if (common / name).is_symlink() or not (common / name).is_dir():
            raise Invalid(f"the repository's {name} is not a directory of its own", "repo_path")
    if (common / "packed-refs").is_symlink():
        raise Invalid("the repository's packed-refs is a link", "repo_path")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):
        found = path.stat()
        return found.st_mtime_ns, found.st_ino, found.st_size
    return None
