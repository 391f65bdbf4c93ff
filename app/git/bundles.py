"""Bundles: git's objects and refs as files for the store, each standing on the ones before.

`git bundle verify` takes corrupt and truncated bundles for good, so a manifest carries the file's SHA-256, its size, and the commits that
it stands on. A task's bundle is made of one commit, its carrier: a tree of all trees that must travel (the worktree's, the index's,
what conflicts), with all commits that must travel as parents, and the carrier before. So the bundle of the next one holds only what is
new, with deltas against what was there. The carrier is at refs/byre/tasks/{id}/carrier.

Rules: nothing of a bundle is used before its checksum was seen right; a missing base is `MissingBase`, a wrong checksum `Corrupt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from app.core.errors import Corrupt
from app.git import snapshots
from app.git.errors import MissingBase
from app.git.repo import Repo, Worktree
from app.git.run import BYRE
from app.git.snapshots import Taken

VERSION = 1
PACK_SECONDS = 600.0
FULL_AFTER = 64  # Bundles of a chain after which the next should be a full one again.
_HEADER = 2**20  # Bytes that the text before a bundle's pack may have.

Manifest = dict[str, Any]


def create(
    worktree: Worktree, taken: Taken, file: Path, *, branch: str, base: str, previous: Mapping[str, Any] | None
) -> Manifest | None:
    """Writes what is new since `previous` (the manifest of the last bundle that is in the store; None: since `base`) to `file`.

    `taken` is what the last look found. Gives the manifest, JSON values; None if nothing is new. Raises GitError, OSError.
    """
    repo, task = worktree.repo, worktree.task
    first = int(previous["n"]) + 1 if previous else 1
    snaps = {n: commit for n, commit in _snapshots(repo, task) if n >= first}
    tip = repo.tip(f"refs/heads/{branch}")
    now = {"tree": taken.looked.tree, "branch": branch, "branch_tip": tip, "base": base, "state": taken.state.to_json()}
    if previous and not snaps and all(previous.get(name) == value for name, value in now.items()):
        return None
    carrier_ref = snapshots.namespace(task) + "carrier"
    parents = [
        previous["carrier"] if previous else repo.tip(carrier_ref),
        *snaps.values(),
        taken.state.head,
        tip,
        base,
        *taken.state.commits,
        *(commit for commit, _ in taken.state.stashes),
    ]
    carrier = _carrier(repo, taken, [parent for parent in dict.fromkeys(parents) if parent])
    repo.run("update-ref", carrier_ref, carrier)
    stands_on = [base, *([previous["carrier"]] if previous else [])]
    about = write(repo, file, [carrier_ref], stands_on)
    n = max(snaps, default=first - 1)
    return {"task": task, "n": n, "carrier": carrier, "snapshots": {str(n): oid for n, oid in snaps.items()}, **now, **about}


def write(repo: Repo, file: Path, refs: Iterable[str], stands_on: Iterable[str]) -> Manifest:
    """Writes a bundle of what `refs` have beyond the commits `stands_on`. Gives what every manifest has. Raises GitError."""
    known = [commit for commit in dict.fromkeys(stands_on) if repo.exists(commit)]
    lines = "".join([*(f"{ref}\n" for ref in refs), *(f"^{commit}\n" for commit in known)])
    file.unlink(missing_ok=True)
    repo.run("bundle", "create", "--quiet", str(file), "--stdin", input=lines.encode(), seconds=PACK_SECONDS)
    digest, size = checksum(file)
    with file.open("rb") as content:
        prerequisites, _ = _header(content.read(_HEADER))
    return {"version": VERSION, "sha256": digest, "bytes": size, "prerequisites": prerequisites}


def verify(file: Path, manifest: Mapping[str, Any], key: str = "") -> None:
    """Raises Corrupt, naming `key`, unless the file is what the manifest says."""
    if manifest.get("version") != VERSION:
        raise Corrupt("a bundle is of a version that this release doesn't know", key)
    digest, size = checksum(file)
    if (digest, size) != (manifest["sha256"], manifest["bytes"]):
        raise Corrupt("a bundle is damaged: its checksum is wrong", key)


def apply(repo: Repo, file: Path, manifest: Mapping[str, Any], key: str = "") -> None:
    """Puts the objects of a bundle into the repository. Raises Corrupt, MissingBase, GitError."""
    verify(file, manifest, key)
    missing = [commit for commit in manifest["prerequisites"] if not repo.exists(commit)]
    if missing:
        raise MissingBase(f"the bundle stands on commit {missing[0]}, which the project's repository doesn't have")
    with file.open("rb", buffering=0) as content:
        try:
            _, start = _header(content.read(_HEADER))
        except ValueError:
            raise Corrupt("a bundle is damaged: it has no header", key) from None
        content.seek(start)
        repo.run("index-pack", "--stdin", "--fix-thin", source=content, seconds=PACK_SECONDS)


def checksum(file: Path) -> tuple[str, int]:
    """SHA-256 (hex) and size of a file."""
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256")
        return digest.hexdigest(), content.tell()


def _snapshots(repo: Repo, task: str) -> list[tuple[int, str]]:
    prefix = snapshots.namespace(task) + "snap/"
    lines = repo.run("for-each-ref", "--format=%(refname) %(objectname)", prefix).text.splitlines()
    pairs = [line.removeprefix(prefix).split(" ") for line in lines]
    return sorted((int(n), commit) for n, commit in pairs if n.isdecimal())


def _carrier(repo: Repo, taken: Taken, parents: list[str]) -> str:
    state = taken.state
    entries = [f"040000 tree {taken.looked.tree}\twork"]
    if state.staged:
        entries.append(f"040000 tree {state.staged}\tstaged")
    blobs = sorted({oid for mode, oid, *_ in state.conflicts if mode != "160000"})
    if blobs:
        lines = "".join(f"100644 blob {oid}\t{oid}\n" for oid in blobs)
        entries.append(f"040000 tree {repo.run('mktree', input=lines.encode()).text}\tconflicts")
    tree = repo.run("mktree", input="".join(entry + "\n" for entry in entries).encode()).text
    options = [word for parent in parents for word in ("-p", parent)]
    return repo.run("commit-tree", *options, "-m", "byre carrier", tree, environment=BYRE).text


def _header(start: bytes) -> tuple[list[str], int]:
    """The prerequisites that a bundle names, and where its pack begins (gitformat-bundle). Raises ValueError."""
    end = start.index(b"\n\n")
    lines = start[:end].split(b"\n")
    if not lines[0].startswith(b"# v") or not lines[0].endswith(b" git bundle"):
        raise ValueError("no bundle")
    return [line[1:].split(b" ")[0].decode() for line in lines[1:] if line.startswith(b"-")], end + 2
