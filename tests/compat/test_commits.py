"""dulwich's answers about commits, held against git's."""

from __future__ import annotations

from app.git import objects
from tests.git.lab import git, make, sh


def test_trees_and_parents_are_git_s_own_loose_and_packed(tmp_path) -> None:  # type: ignore[no-untyped-def]
    lab = make(tmp_path)
    sh(
        lab.work,
        "git checkout -q -b side; git commit -q --allow-empty -m s; git checkout -q main; git commit -q --allow-empty -m m",
    )
    sh(lab.work, "git merge -q --no-edit side; git tag -a -m t v1")
    for _ in ("loose", "packed"):
        commits = git(lab.work, "rev-list", "--all").split()
        assert len(commits) == 4
        for commit in commits:
            tree, *parents = git(lab.work, "show", "-s", "--format=%T %P", commit).split()
            assert objects.links(lab.repo.common, commit) == objects.Links(tree, tuple(parents))
        git(lab.work, "gc", "-q")
    assert objects.links(lab.repo.common, git(lab.work, "rev-parse", "v1")) is None, "a tag is no commit"
    assert objects.links(lab.repo.common, "0" * 40) is None
