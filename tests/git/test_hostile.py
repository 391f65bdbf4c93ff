"""Hostile repositories and addresses: no program of theirs runs by our own git calls, and what isn't allowed is refused unstarted."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from app.core.errors import Invalid
from app.git import changes, diff, paths, projects, remotes, snapshots, worktrees
from tests.git.lab import Lab, git, sh, worker_views

ADDRESSES = [
    "ext::sh -c id",
    "ext::sh",
    "fd::7",
    "--upload-pack=id",
    "-oProxyCommand=id",
    "",
    "https://",
    "https://host",
    "http://host/a.git",
    "ftp://host/a",
    "file:///etc",
    "file://host/etc",
    "/etc",
    "/nope",
    "https://user:secret@host/a",
    "https://user@host/a",
    "https://host/a\r\nHost: b",
    "https://host/a b",
    "https://ho st/a",
    "https://-host/a",
    "ssh://-oProxyCommand=id/a",
    "ssh://u@-h/a",
    "ssh://host:99999/a",
    "git://host\x00/a",
    "host:-a",
    "-h:a",
    "user@-h:a",
    "ext::https://host/a",
    "https::https://host/a",
    "a\nb:c",
    "https://[::zz]/a",
    "https://host/-a",
    "\u202ehttps://host/a",
]
BRANCHES = [
    "",
    "-x",
    "a..b",
    "a b",
    "a~1",
    "a^",
    "a:b",
    "a?",
    "*",
    "[a",
    "a\\b",
    "a//b",
    "/a",
    "a/",
    ".a",
    "a/.b",
    "a.lock",
    "a.",
    "@",
    "a@{1}",
    "HEAD",
    "a\nb",
    "a\x7f",
    "x" * 300,
    "\udcff",
]
PATHS = ["", "/etc/passwd", "../a", "a/../b", "a//b", "./a", "a\0b", '"a', '"\\x"', '"a\\', "x" * 5000, "a/"]


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_that_are_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as refused:
        remotes.remote(address, [tmp_path])
    assert refused.value.field == "repo_path" and "secret" not in refused.value.message


@pytest.mark.parametrize("name", BRANCHES)
def test_branch_names_that_are_refused_by_git_too(name: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid):
        remotes.branch(name)


@pytest.mark.parametrize("path", PATHS)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(Invalid):
        paths.parse(path)


@pytest.mark.parametrize("text", ["HEAD", "--output=x", "abc", "main", "0" * 39, "g" * 40, "HEAD^{tree}", ""])
def test_what_is_no_object_id_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        remotes.object_id(text, "base")


def test_links_out_of_the_roots_and_bare_repositories_are_refused(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    git(outside, "init", "-q")
    (lab.base / "way-out").symlink_to(outside)
    pointed = lab.base / "pointed"
    pointed.mkdir()
    (pointed / ".git").write_text(f"gitdir: {outside / '.git'}\n")
    for place in (lab.base / "way-out", pointed, lab.origin, lab.base, lab.work / "nope"):
        with pytest.raises(Invalid):
            projects.open_directory(lab.views, str(place), [lab.base])


def test_no_program_of_a_repository_runs(lab: Lab) -> None:
    canary = lab.base / "canary"
    program = lab.base / "evil.sh"
    program.write_text(f"#!/bin/sh\ntouch {canary}\ncat\n")
    program.chmod(0o755)
    for name in (
        "core.fsmonitor",
        "core.sshCommand",
        "core.pager",
        "core.editor",
        "core.askPass",
        "core.gitProxy",
        "core.alternateRefsCommand",
        "diff.external",
        "diff.evil.command",
        "diff.evil.textconv",
        "filter.evil.clean",
        "filter.evil.smudge",
        "filter.evil.process",
        "merge.evil.driver",
        "credential.helper",
        "gpg.program",
        "remote.origin.uploadpack",
        "remote.origin.receivepack",
        "uploadpack.packObjectsHook",
        "sequence.editor",
        "interactive.diffFilter",
        "pager.status",
        "trailer.x.command",
    ):
        git(lab.work, "config", name, str(program))
    for name in ("status", "add", "diff-tree", "write-tree", "update-index"):
        git(lab.work, "config", f"alias.{name}", f"!{program}")
    git(lab.work, "config", "core.hooksPath", str(lab.base / "hooks"))
    (lab.base / "hooks").mkdir()
    for hook in (
        "post-checkout",
        "post-index-change",
        "reference-transaction",
        "pre-commit",
        "fsmonitor-watchman",
        "pre-auto-gc",
    ):
        for folder in (lab.base / "hooks", lab.work / ".git" / "hooks"):
            (folder / hook).write_text(program.read_text())
            (folder / hook).chmod(0o755)
    views = worker_views(lab.base / "private-2", lab.base)
    opened = projects.open_directory(views, str(lab.work), [lab.base])
    assert opened.notes == ("the filter evil of this repository is not run",)
    tip = projects.default_tip(opened.repo, "main")
    task = secrets.token_hex(16)
    worktree = worktrees.create(opened.repo, lab.base / "worktrees" / task, task, "byre/x", tip)
    (worktree.path / ".gitattributes").write_text("* filter=evil diff=evil merge=evil\n")
    (worktree.path / "a.txt").write_text("changed\n")
    nested = worktree.path / "nested"
    nested.mkdir()
    sh(nested, f"git init -q .; echo x > f; git add f; git commit -q -m n; git config core.fsmonitor {program}; echo y > f")
    sh(nested, f"git config filter.evil.clean {program}; echo '* filter=evil' > .gitattributes")
    for n in (1, 2):
        taken = snapshots.take(worktree, n, changes.tree_of(opened.repo, tip))
        assert taken.looked.nested == ("nested",)
    found = changes.live(worktree, tip, tip)
    for file in found.files:
        diff.file_diff(worktree, task, found.base, found.tree, file.path, base_ref=tip)
    changes.unmerged(worktree, tip, tip)
    worktrees.remove(worktree, "byre/x")
    assert not canary.exists()
    assert not os.path.lexists(worktree.path)
    (lab.work / ".gitattributes").write_text("* filter=evil\n")
    git(lab.work, "add", "-A", ok=False)
    assert canary.exists(), "the trap doesn't work: git itself would not have run it"
