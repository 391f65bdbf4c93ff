"""Hostile content: trees that git itself would not make, repositories that lead elsewhere, bundles and manifests that lie.

Whatever it is, it is refused with an error of ours, or taken without anything written outside of the worktree.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.core.errors import ByreError, Invalid
from app.git import bundles, mirrors, projects, rebuild, snapshots, submodules, worktrees
from app.git.credentials import access
from tests.git.lab import Lab, git, git_bytes, sh, worker_views

NAMES = [b".git", b".GIT", b".gIt", b"..", b".", b"git~1", b".git ", b".git.", b".git\xe2\x80\x8c", b".git::$INDEX_ALLOCATION"]


@pytest.fixture(autouse=True)
def no_canary() -> Iterator[None]:
    yield
    assert not Path("/canary").exists(), "a program of the repository ran"


def outside(base: Path) -> set[str]:
    """All that lies below `base` but in git's and our own directories."""
    own = ("private", "worktrees", "origin.git", ".git")
    return {str(path) for path in base.rglob("*") if not any(part in own for part in path.relative_to(base).parts)}


def commit_of(lab: Lab, *entries: bytes) -> str:
    """A commit of a tree with exactly these entries, however bad."""
    tree = b"".join(entries)
    oid = git_bytes(lab.work, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", data=tree).decode().strip()
    return git(lab.work, "commit-tree", "-m", "bad", oid)


def blob(lab: Lab, text: bytes) -> bytes:
    return bytes.fromhex(git_bytes(lab.work, "hash-object", "-w", "--stdin", data=text).decode().strip())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["file", "directory", "link"])
def test_trees_with_names_that_lead_into_git_or_out_of_the_worktree(lab: Lab, name: bytes, kind: str) -> None:
    evil = blob(lab, b"#!/bin/sh\ntouch /canary\n")
    if kind == "file":
        commit = commit_of(lab, b"100755 " + name + b"\0" + evil)
    elif kind == "link":
        commit = commit_of(lab, b"120000 " + name + b"\0" + blob(lab, b"../../work"))
    else:
        inner = git_bytes(
            lab.work, "hash-object", "-t", "tree", "-w", "--literally", "--stdin", data=b"100755 post-checkout\0" + evil
        )
        commit = commit_of(lab, b"40000 " + name + b"\0" + bytes.fromhex(inner.decode().strip()))
    before, task = outside(lab.base), secrets.token_hex(16)
    place = lab.base / "worktrees" / task
    try:
        made = worktrees.create(lab.repo, place, task, "byre/x", commit)
    except ByreError:
        made = None
    assert outside(lab.base) == before
    assert made is None or (place / ".git").is_file()
    assert not (lab.work / ".git" / "worktrees" / task / "post-checkout").exists()
    assert not (lab.work / ".git" / "hooks" / "post-checkout").exists()


def test_a_file_below_a_link_that_leads_out_is_not_written(lab: Lab) -> None:
    target = lab.base / "target"
    target.mkdir()
    inner = (
        git_bytes(lab.work, "mktree", data=b"100644 blob " + blob(lab, b"x").hex().encode() + b"\tstolen.txt\n")
        .decode()
        .strip()
    )
    commit = commit_of(
        lab, b"120000 out\0" + blob(lab, str(target).encode()), b"40000 out\0" + bytes.fromhex(inner)
    )  # both a link and a directory
    task = secrets.token_hex(16)
    with contextlib.suppress(ByreError):
        worktrees.create(lab.repo, lab.base / "worktrees" / task, task, "byre/x", commit)
    assert not list(target.iterdir())


def move_objects(lab: Lab) -> None:
    (lab.work / ".git" / "objects").rename(lab.base / "objects-elsewhere")
    (lab.work / ".git" / "objects").symlink_to(lab.base / "objects-elsewhere")


def alternates(lab: Lab) -> None:
    (lab.work / ".git" / "objects" / "info" / "alternates").write_text("/etc\n")


def head_out(lab: Lab) -> None:
    (lab.work / ".git" / "HEAD").write_text("ref: ../../../../etc/passwd\n")


def packed_link(lab: Lab) -> None:
    (lab.work / ".git" / "packed-refs").unlink(missing_ok=True)
    (lab.work / ".git" / "packed-refs").symlink_to("/etc/passwd")


def setting(name: str, value: str) -> Callable[[Lab], None]:
    return lambda lab: git(lab.work, "config", name, value) and None


def broken_config(lab: Lab) -> None:
    (lab.work / ".git" / "config").write_text("[core\nno end")


def common_out(lab: Lab) -> None:
    (lab.work / ".git").rename(lab.base / "moved")
    (lab.work / ".git").write_text("gitdir: ../../../../../../etc\n")


@pytest.mark.parametrize(
    "spoil",
    [
        move_objects, alternates, head_out, packed_link, broken_config, common_out,
        setting("extensions.partialClone", "origin"), setting("extensions.refStorage", "reftable"), setting("extensions.unheard", "1"),
        setting("remote.origin.url", "ext::sh -c 'touch /canary'"), setting("remote.origin.url", "--upload-pack=touch"),
        setting("remote.origin.url", "/etc"), setting("core.repositoryformatversion", "9"),
    ],
)  # fmt: skip
def test_repositories_that_lead_elsewhere_are_refused(lab: Lab, spoil: Callable[[Lab], Any]) -> None:
    spoil(lab)
    with pytest.raises(ByreError):
        found = projects.open_directory(worker_views(lab.base / "private-2", lab.base), str(lab.work), [lab.base])
        assert found.origin
        with access(found.repo.views.git, found.origin) as allowed:
            projects.fetch(found.repo, found.origin, allowed)
        projects.default_tip(found.repo, found.default_branch)


def test_an_origin_whose_directory_went_is_one_that_does_not_answer(lab: Lab) -> None:
    lab.origin.rename(lab.base / "away")
    found = projects.open_directory(lab.views, str(lab.work), [lab.base])
    assert found.origin == lab.opened.origin and projects.default_tip(found.repo, found.default_branch) == lab.tip
    with pytest.raises(Invalid, match="origin: there is no such repository"), access(lab.views.git, found.origin) as allowed:
        projects.fetch(found.repo, found.origin, allowed)
    with pytest.raises(Invalid, match="origin: there is no such directory"):
        projects.open_directory(lab.views, str(lab.work), [lab.base], new=True)


@pytest.mark.parametrize(
    "place", ["/nowhere/at-all.git", "../../nowhere.git", "../link/nowhere.git", "../away/../../nowhere.git"]
)
def test_whether_a_directory_outside_of_the_roots_is_there_is_not_told(lab: Lab, place: str) -> None:
    (lab.base / "link").symlink_to("/usr")
    setting("remote.origin.url", place)(lab)
    with pytest.raises(Invalid, match="origin: there is no such directory"):
        projects.open_directory(worker_views(lab.base / "private-2", lab.base), str(lab.work), [lab.base])


def test_submodules_are_not_taken_from_anywhere(lab: Lab) -> None:
    addresses = ["ext::sh -c id", "/etc", "../../../../etc", "file:///etc", "-x", "https://user:pw@host/a"]
    names = ["../../hooks", "x/../../../hooks", ".git", "-n", "a", "b"]
    lines = [
        f'[submodule "{name}"]\n\tpath = m{n}\n\turl = {url}\n'
        for n, (name, url) in enumerate(zip(names, addresses, strict=True))
    ]
    (lab.work / ".gitmodules").write_text("".join(lines))
    links = "".join(f"160000 {lab.tip} 0\tm{n}\n" for n in range(len(names)))
    git_bytes(lab.work, "update-index", "--index-info", data=links.encode())
    sh(lab.work, "git add .gitmodules; git commit -q -m modules; git push -q origin HEAD:main; git fetch -q")
    worktree, _ = lab.task()
    notes = submodules.fill(worktree, lab.opened.origin, [lab.base], lambda remote: access(lab.views.git, remote))
    assert len(notes) == len(names) and all("left out" in note for note in notes)
    assert not any((worktree.path / f"m{n}" / "README.md").exists() for n in range(len(names)))


def cut(data: bytes) -> bytes:
    return data[:-20]


def flipped(data: bytes) -> bytes:
    return data[:-40] + bytes([data[-40] ^ 1]) + data[-39:]


def headless(data: bytes) -> bytes:
    return data[data.index(b"\n\n") + 2 :]


@pytest.mark.parametrize("spoil", [cut, flipped, headless, lambda data: b"", lambda data: b"# v2 git bundle\n\nPACK"])
@pytest.mark.parametrize("known", [False, True])
def test_bundles_that_aren_t_what_they_say(lab: Lab, spoil: Callable[[bytes], bytes], known: bool) -> None:
    worktree, branch = lab.task()
    (worktree.path / "a.txt").write_text("work\n" * 50)
    file = lab.base / "one.bundle"
    manifest = bundles.create(worktree, lab.take(worktree), file, branch=branch, base=lab.tip, previous=None)
    assert manifest
    file.write_bytes(spoil(file.read_bytes()))
    if known:  # A manifest that fits the damage: git itself must refuse then.
        digest, size = bundles.checksum(file)
        manifest |= {"sha256": digest, "bytes": size}
    away = mirrors.open_mirror(worker_views(lab.base / "private-3", lab.base), lab.base / "away.git")
    assert lab.opened.origin
    with access(away.views.git, lab.opened.origin) as allowed:
        mirrors.refresh(away, lab.opened.origin, allowed)
    place = lab.base / "worktrees" / "again"
    with pytest.raises(ByreError):
        rebuild.rebuild(away, place, worktree.task, [rebuild.Part(manifest, file)])
    assert not place.exists() or not any(path for path in place.iterdir() if path.name != ".git")


@pytest.mark.parametrize(
    "lie",
    [
        {"branch": "-x"}, {"branch": "a..b"}, {"branch": "../../x"}, {"task": "0" * 32}, {"version": 99},
        {"prerequisites": ["0" * 40]}, {"sha256": "0" * 64},
    ],
)  # fmt: skip
def test_manifests_that_lie_are_refused(lab: Lab, lie: dict[str, Any]) -> None:
    worktree, branch = lab.task()
    (worktree.path / "a.txt").write_text("work\n")
    file = lab.base / "one.bundle"
    manifest = bundles.create(worktree, lab.take(worktree), file, branch=branch, base=lab.tip, previous=None)
    worktrees.remove(worktree, branch)
    git(lab.work, "gc", "-q", "--prune=now")
    with pytest.raises(ByreError):
        rebuild.rebuild(lab.repo, worktree.path, worktree.task, [rebuild.Part({**(manifest or {}), **lie}, file)])


def test_state_files_of_a_manifest_go_only_where_git_keeps_them(lab: Lab) -> None:
    worktree, branch = lab.task()
    (worktree.path / "a.txt").write_text("work\n")
    file = lab.base / "one.bundle"
    manifest = bundles.create(worktree, lab.take(worktree), file, branch=branch, base=lab.tip, previous=None)
    assert manifest
    names = [
        "../../hooks/post-checkout",
        "hooks/x",
        "config",
        "rebase-merge/../../config",
        "/tmp/x",
        "commondir",
        "rebase-merge/a/b",
    ]
    manifest["state"]["files"] = dict.fromkeys(names, "dG91Y2g=")
    config = (lab.work / ".git" / "config").read_text()
    worktrees.remove(worktree, branch)
    again = rebuild.rebuild(lab.repo, worktree.path, worktree.task, [rebuild.Part(manifest, file)]).worktree
    assert (lab.work / ".git" / "config").read_text() == config
    assert not (lab.work / ".git" / "hooks" / "post-checkout").exists()
    assert not (again.git_dir / "hooks").exists() and (again.git_dir / "commondir").read_text() == "../..\n"
    assert snapshots.look(again).tree == manifest["tree"]
