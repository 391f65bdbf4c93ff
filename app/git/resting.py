"""A task whose worktree isn't on this host, from its bundles: what it changed, and what it would lose.

Rules: only objects and refs are put into the project's repository, no files are checked out. The answers are those that its worktree would
have given when the last bundle was made.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from app.git import changes, paths, rebuild, snapshots
from app.git.changes import TaskChanges, Unmerged
from app.git.rebuild import Part
from app.git.repo import Repo, Rested
from app.git.state import State
from app.git.vault import Manifests, Vault


@contextmanager
def rested(repo: Repo, task: str, branch: str, base_ref: str, vault: Vault) -> Iterator[tuple[Rested, State | None]]:
    """A task's last bundle, looked at for as long as the block lasts; the branch alone where there is none.

    Raises Corrupt, MissingBase, Unavailable, GitError.
    """
    chain = vault.chain()
    if chain and repo.tip(snapshots.namespace(task) + "carrier") != chain[-1]["carrier"]:
        with vault.files(missing(repo, chain)) as files:
            rebuild.objects(repo, task, parts(chain, files), branch=False)
    place = Path(tempfile.mkdtemp(prefix="rested-", dir=repo.views.git.private))
    try:
        (place / "empty").mkdir()
        if chain:
            state = State.from_json(chain[-1]["state"])
            tree, head = chain[-1]["tree"], state.head
        else:
            state, head = None, repo.tip(f"refs/heads/{branch}") or base_ref
            tree = changes.tree_of(repo, head)
        found = Rested(repo, task, tree, head, place / "index", place / "empty")
        found.run("read-tree", tree)
        yield found, state
    finally:
        shutil.rmtree(place, ignore_errors=True)


def missing(repo: Repo, chain: Manifests) -> Manifests:
    """The end of a chain that the repository doesn't have, at least its last bundle: each stands on the ones before."""
    have = 0
    while have < len(chain) - 1 and repo.exists(chain[have]["carrier"]):
        have += 1
    return chain[have:]


def parts(chain: Manifests, files: Sequence[Part]) -> list[Part]:
    """A whole chain, of which the last bundles alone have files."""
    return [*(Part(manifest, None) for manifest in chain[: len(chain) - len(files)]), *files]


def live(rest: Rested, default_tip: str, base_ref: str, since: str | None = None) -> TaskChanges:
    """As `changes.live`."""
    base = changes.history_commit(rest.repo, rest.task, since, "since", rest.head, base_ref) if since else None
    base = base or changes.merge_base(rest.repo, rest.head or base_ref, default_tip) or base_ref
    return TaskChanges(base, rest.tree, changes.between(rest, base, rest.tree))


def unmerged(rest: Rested, state: State | None, default_tip: str, base_ref: str) -> Unmerged:
    """As `changes.unmerged`."""
    found = live(rest, default_tip, base_ref)
    commits = int(rest.repo.run("rev-list", "--count", rest.head, f"^{default_tip}", "--").text) if rest.head else 0
    return Unmerged(
        commits,
        len(found.files),
        sum(file.additions for file in found.files),
        sum(file.deletions for file in found.files),
        _uncommitted(rest, state),
    )


def _uncommitted(rest: Rested, state: State | None) -> int:
    """How many entries `git status` had: what is staged, what isn't, and what is in conflict."""
    if state is None:
        return 0
    head = rest.head or changes.EMPTY_TREE[len(rest.tree)]
    staged = state.staged or changes.EMPTY_TREE[len(rest.tree)]
    conflicts = {path for *_, path in state.conflicts}
    ahead = [file for file in changes.between(rest, head, staged) if file.path not in conflicts]
    unseen = conflicts.union(state.skipped)
    behind = [file for file in _plain(rest, staged) if file[1] not in unseen]
    tracked = {file.path for file in ahead} | {path for letter, path in behind if letter != "A"}
    return len(conflicts) + len(tracked) + sum(letter == "A" for letter, _ in behind)


def _plain(rest: Rested, staged: str) -> list[tuple[str, str]]:
    """Letter and path of what the worktree had otherwise than the index, without renames."""
    fields = rest.run("diff-tree", "-r", "-z", "--name-status", "--no-renames", staged, rest.tree, "--").out.split(b"\0")
    return [(letter.decode(), paths.show(path)) for letter, path in zip(fields[0::2], fields[1::2], strict=False)]
