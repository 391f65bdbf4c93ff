"""Squash merges: a task's worktree as one commit on the default branch.

Rules (design 04): the commit's tree is the worktree as if everything were staged, its parent is the default branch's tip, which the branch
must contain with nothing unmerged. The message, the author and the time decide the commit, so that making it again gives the same one:
what has been done before a crash is known from git. publish.py pushes it, forward.py brings the user's checkout along.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from app.core.errors import Conflict, Invalid
from app.git import paths, snapshots
from app.git.changes import is_ancestor, tree_of
from app.git.repo import Repo, Worktree

_MARKER = re.compile(rb"(?m)^<{7,}[ \r\n].*?^>{7,}[ \r\n]", re.S)
_CHECKED = re.compile(rb"(.+):[0-9]+: leftover conflict marker\.?\Z", re.S)
_MAX_BLOB = 16 * 2**20
_MAX_NAMED = 50
_CONTROL = re.compile(r"[\x00-\x1f\x7f]+")


@dataclass(frozen=True)
class Person:
    """Who a commit is by. Raises Invalid for what git can't take."""

    name: str
    email: str

    def __post_init__(self) -> None:
        for field, text in (("git_name", self.name), ("git_email", self.email)):
            if not text.strip() or re.search(r"[\x00-\x1f\x7f<>]", text):
                raise Invalid(f"{field} must be set, without control characters, < and >", field)

    def __str__(self) -> str:
        return f"{self.name.strip()} <{self.email.strip()}>"


@dataclass(frozen=True)
class Message:
    """What a squash commit says. `when` is in seconds since 1970: the time of the request, the same each time it is made."""

    title: str
    author: Person
    when: int
    co_authors: tuple[Person, ...] = ()
    body: str = ""

    @property
    def subject(self) -> str:
        """The title as one line."""
        return _CONTROL.sub(" ", self.title).strip() or "Merge"

    @property
    def text(self) -> str:
        """Title, body, and a trailer for each co-author other than the author."""
        others = [person for person in dict.fromkeys(self.co_authors) if person.email.lower() != self.author.email.lower()]
        trailers = "\n".join(f"Co-authored-by: {person}" for person in others)
        return "\n\n".join(part for part in (self.subject, self.body.strip().replace("\0", ""), trailers) if part) + "\n"


def contains(worktree: Worktree, tip: str) -> bool:
    """Whether the worktree's HEAD contains the commit `tip`."""
    head = worktree.head().commit
    return head is not None and is_ancestor(worktree.repo, tip, head)


def unsettled(worktree: Worktree, tip: str, tree: str) -> list[str]:
    """Paths that are still in conflict: unmerged in the index, or with conflict markers that the commit `tip` doesn't have.

    At most 50, as people see them.
    """
    listed = worktree.run("ls-files", "--unmerged", "-z").out.split(b"\0")
    found = [entry.split(b"\t", 1)[1] for entry in listed if entry]
    done = worktree.run(
        "diff-tree", "-r", "--check", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", tip, tree, "--",
        settings=("core.whitespace=-blank-at-eol,-blank-at-eof,-space-before-tab,-indent-with-non-tab,-tab-in-indent,-cr-at-eol",),
        ok=(0, 2), cut=True, limit=2**20,
    )  # fmt: skip
    suspects = [match[1] for line in done.out.split(b"\n") if (match := _CHECKED.match(line))]
    for path in dict.fromkeys(suspects):
        # A line of seven equal signs alone is a heading in some formats; a conflict has a beginning and an end.
        if _MARKER.search(_blob(worktree, tree, path)):
            found.append(path)
    return [paths.show(path) for path in dict.fromkeys(found)][:_MAX_NAMED]


def check_filters(worktree: Worktree, changed: Sequence[bytes]) -> None:
    """Raises Conflict if a changed file goes through a filter whose work we can't push: the repository's own, or git-lfs.

    What is stored of such a file (decrypted, say) isn't what the project wants in its history.
    """
    filters = worktree.repo.views.filters(worktree.repo.common)
    if worktree.repo.views.git.lfs:
        filters.append("lfs")  # The content would have to be pushed too, to another server.
    if not filters or not changed:
        return
    data = b"\0".join(changed) + b"\0"
    fields = worktree.run("check-attr", "--stdin", "-z", "filter", input=data).out.split(b"\0")
    for path, value in zip(fields[0::3], fields[2::3], strict=False):
        if value.decode("utf-8", "replace") in filters:
            raise Conflict(f"{paths.show(path)} goes through the filter {value.decode()}: merge by hand")


def squash(worktree: Worktree, tip: str, message: Message) -> str | None:
    """The squash commit of the worktree as it is now on `tip`, None if it holds nothing that `tip` doesn't.

    Raises Conflict if the branch doesn't contain `tip`, or something is unsettled; TooLarge, GitError.
    """
    if not contains(worktree, tip):
        raise Conflict("the branch doesn't contain the default branch: merge it in first")
    looked = snapshots.look(worktree, ignored=False)
    if looked.left:
        raise Conflict(f"{looked.left[0]} can't be read, so the work is not complete")
    left = unsettled(worktree, tip, looked.tree)
    if left:
        raise Conflict(f"conflicts are left in {', '.join(left)}")
    if looked.tree == tree_of(worktree.repo, tip):
        return None
    names = worktree.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", tip, looked.tree, "--").out.split(b"\0")
    check_filters(worktree, [name for name in names if name])
    commit = commit_of(worktree.repo, looked.tree, tip, message)
    # Kept until clean-up: nothing else holds it between here and the push.
    worktree.repo.run("update-ref", f"{snapshots.namespace(worktree.task)}merge", commit)
    return commit


def commit_of(repo: Repo, tree: str, parent: str, message: Message) -> str:
    """The commit of `tree` on `parent` with this message: the same one each time."""
    environment = {}
    for role in ("AUTHOR", "COMMITTER"):
        environment[f"GIT_{role}_NAME"] = message.author.name.strip()
        environment[f"GIT_{role}_EMAIL"] = message.author.email.strip()
        environment[f"GIT_{role}_DATE"] = f"@{message.when} +0000"
    return repo.run("commit-tree", "-p", parent, "-F", "-", tree, input=message.text.encode(), environment=environment).text


def landed(repo: Repo, tip: str, base: str, message: Message) -> str | None:
    """The squash commit with this message in `base..tip`, None if it isn't there: whether a push that we don't remember succeeded."""
    done = repo.run("log", "--format=%H%x00%at%x00%ae%x00%B", "-z", "--max-count=10000", f"{base}..{tip}", "--")
    fields = done.text.split("\0")
    wanted = (str(message.when), message.author.email.strip(), message.text.strip())
    for commit, when, email, text in zip(*(fields[at::4] for at in range(4)), strict=False):
        if (when, email, text.strip()) == wanted:
            return str(commit)
    return None


def _blob(worktree: Worktree, tree: str, path: bytes) -> bytes:
    request = tree.encode() + b":" + path + b"\n"
    done = worktree.run("cat-file", "--batch", input=request, limit=_MAX_BLOB, cut=True)
    return done.out.partition(b"\n")[2]
