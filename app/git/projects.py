"""Opening a project's repository: a directory of a user, or a git address.

Rules: git doesn't search for a repository here. We look at the directory that was named and at nothing around it; its own directory and
all that its `.git` points to must lie under the repository roots. What is wrong is said in words that a user can act on, as `Invalid`
of `repo_path`. "The default branch" is origin's last fetched tip of it, and the local branch where there is no origin.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.core.errors import Invalid, Unavailable
from app.git import remotes
from app.git.errors import GitFailed, last_words, redacted
from app.git.remotes import Remote
from app.git.repo import Repo
from app.git.run import Access
from app.git.view import Config, Views

FETCH_SECONDS = 8.0
_SYMREF = re.compile(r"ref: refs/heads/(.+)\tHEAD\Z")
_REASONS = (
    (
        ("Authentication failed", "could not read Username", "could not read Password", "Permission denied", "unable to read askpass",
         "The requested URL returned error: 401", "The requested URL returned error: 403", "Invalid username or"),
        "access is denied: set the project's credentials",
    ),
    (("not found", "does not exist", "does not appear to be a git repository"), "there is no such repository, or no access to it"),
    (("Could not resolve host", "Could not resolve hostname"), "its host is not known"),
    (("Host key verification failed",), "its host key has changed"),
)  # fmt: skip


@dataclass(frozen=True)
class Opened:
    """A repository that can be worked with. `push` is where its origin takes pushes; `notes` say what a user should know."""

    repo: Repo
    default_branch: str
    origin: Remote | None
    push: Remote | None
    notes: tuple[str, ...] = ()

    @property
    def remote(self) -> str:
        """Origin's address without credentials, "" if there is none."""
        return self.origin.url if self.origin else ""


def open_directory(views: Views, text: str, roots: Sequence[Path], field: str = "repo_path", *, new: bool = False) -> Opened:
    """The repository whose top directory is `text`. Raises Invalid and says why not; of a `new` project origin has to be there."""
    path = remotes.directory(text, roots, field)
    common = _common_directory(path, roots, field)
    repo = Repo(views, common, path)
    views.of(common)
    config = views.config(common / "config")
    if any(name == "extensions.partialclone" for name, _ in config):
        raise Invalid(f"{field} is a partial clone: fetch all its objects first", field)
    origin, push = _origin(config, path, roots, remotes.remote if new else remotes.accepted)
    branch = _default_branch(repo, origin, field)
    notes = [f"the filter {name} of this repository is not run" for name in views.filters(common)]
    return Opened(repo, branch, origin, push, tuple(notes))


def default_tip(repo: Repo, branch: str) -> str:
    """The commit that "the default branch" means. Raises Invalid if there is neither origin's nor a local one."""
    tip = repo.tip(f"refs/remotes/origin/{branch}") or repo.tip(f"refs/heads/{branch}")
    if not tip:
        raise Invalid(f"the repository has no branch {branch}", "repo_path")
    return tip


def ahead(repo: Repo, branch: str) -> int:
    """How many commits the local default branch has that origin's lacks: they are left alone, a person must push them."""
    if not repo.tip(f"refs/remotes/origin/{branch}") or not repo.tip(f"refs/heads/{branch}"):
        return 0
    done = repo.run("rev-list", "--count", f"refs/remotes/origin/{branch}..refs/heads/{branch}", "--")
    return int(done.text)


def fetch(repo: Repo, origin: Remote, access: Access, *, prune: bool = False, seconds: float = FETCH_SECONDS) -> None:
    """Brings refs/remotes/origin up to date. Raises Unavailable if origin doesn't answer in time, Invalid if it refuses."""
    options = ["--quiet", "--no-tags", "--no-write-fetch-head", "--no-auto-maintenance", "--no-recurse-submodules"]
    if prune:
        options.append("--prune")
    try:
        repo.run("fetch", *options, "--", origin.url, "+refs/heads/*:refs/remotes/origin/*", access=access, seconds=seconds)
    except GitFailed as error:
        raise refusal(error.detail, error.status) from None


def probe(views: Views, origin: Remote, access: Access, *, seconds: float = FETCH_SECONDS) -> str:
    """The name of origin's default branch, asked of origin itself. Raises Invalid or Unavailable and says why not."""
    try:
        done = views.git.run(
            None, "ls-remote", "--symref", "--quiet", "--", origin.url, "HEAD", access=access, seconds=seconds, limit=2**20
        )
    except GitFailed as error:
        raise refusal(error.detail, error.status, "repo_path") from None
    for line in done.text.splitlines():
        if found := _SYMREF.match(line):
            return remotes.branch(found[1], "repo_path")
    if done.out:
        raise Invalid("repo_path: origin's HEAD is detached, so it has no default branch", "repo_path")
    raise Invalid("repo_path: the repository is empty: push a first commit", "repo_path")


def read_file(repo: Repo, commit: str, path: str, limit: int = 2**20) -> bytes | None:
    """The content of a file of a commit, links within the repository followed; None if there is none, or it has over `limit` bytes."""
    done = repo.run(
        "cat-file", "--batch", "--follow-symlinks", input=f"{commit}:{path}\n".encode(), limit=limit + 1024, cut=True
    )
    head, _, body = done.out.partition(b"\n")
    words = head.split()
    if done.cut or len(words) != 3 or words[1] != b"blob":
        return None
    return body[: int(words[2])]


def own_directory(repo: Repo) -> Path:
    """The git directory of the checkout: another one than the repository's if it is itself a linked worktree."""
    assert repo.checkout
    dot_git = repo.checkout / ".git"
    if not dot_git.is_file():
        return repo.common
    own = remotes.resolved(_pointed(dot_git, "gitdir: ", repo.checkout))
    if own is None or own.parent != repo.common / "worktrees":
        raise Invalid("repo_path: the checkout doesn't belong to its repository", "repo_path")
    return own


def refusal(detail: str, status: int, field: str = "origin") -> Exception:
    """What a call to origin that failed means for its caller: Invalid where something must be set right, else Unavailable.

    `field`: what the address was given as, if it was given in this request.
    """
    for signs, reason in _REASONS:
        if any(sign in detail for sign in signs):
            return Invalid(f"{field}: {reason}", field)
    return Unavailable(f"origin can't be reached: {last_words(redacted(detail)) or f'exit status {status}'}")


def _common_directory(path: Path, roots: Sequence[Path], field: str) -> Path:
    """The directory of the repository whose checkout is at `path`."""
    dot_git = path / ".git"
    try:
        if not os.access(path, os.R_OK | os.X_OK):
            raise PermissionError
        if dot_git.is_dir():
            common = dot_git
        elif dot_git.is_file():
            common = _pointed(dot_git, "gitdir: ", path)
            if (common / "commondir").is_file():
                common = _pointed(common / "commondir", "", common)
        elif (path / "HEAD").is_file() and (path / "objects").is_dir():
            raise Invalid(f"{field} is a bare repository: give a checkout of it, or its address", field)
        else:
            raise Invalid(f"{field} is not a git repository: give its top directory", field)
        if not os.access(common, os.R_OK | os.W_OK | os.X_OK) or not os.access(common / "objects", os.W_OK):
            raise PermissionError
    except PermissionError:
        raise Invalid(f"{field}: no permission to use this repository", field) from None
    except (OSError, UnicodeDecodeError):
        raise Invalid(f"{field} is not a git repository that can be read", field) from None
    real = remotes.resolved(common)
    if real is None or not remotes.within(real, roots):
        raise Invalid(f"{field}: the repository's own directory is not under the repository roots", field)
    if not (real / "HEAD").exists() and not (real / "HEAD").is_symlink():
        raise Invalid(f"{field} is not a git repository: its directory is damaged", field)
    return real


def _pointed(file: Path, prefix: str, base: Path) -> Path:
    with file.open("rb") as content:
        text = content.read(4096).decode().rstrip("\n")
    if not text.startswith(prefix) or "\0" in text:
        raise OSError("not a pointer")
    return base / text.removeprefix(prefix)


def _origin(
    config: Config, path: Path, roots: Sequence[Path], parsed: Callable[..., Remote]
) -> tuple[Remote | None, Remote | None]:
    """Where origin is fetched from and pushed to."""
    addresses = {name: value for name, value in reversed(config) if name in ("remote.origin.url", "remote.origin.pushurl")}
    url = addresses.get("remote.origin.url", "")
    if not url:
        return None, None
    texts = (url, addresses.get("remote.origin.pushurl") or url)
    found = [parsed(_place(text, path), roots, "origin", strip=True) for text in texts]
    return found[0], found[1]


def _place(text: str, path: Path) -> str:
    return text if remotes.is_address(text) or text.startswith(("/", "-")) else str(path / text)


def _default_branch(repo: Repo, origin: Remote | None, field: str) -> str:
    """origin/HEAD where it points at something, else the branch that the directory is on."""
    prefix = "refs/remotes/origin/"
    if origin and (target := repo.symref(prefix + "HEAD")) and target.startswith(prefix) and repo.tip(target):
        return remotes.branch(target.removeprefix(prefix), field)
    head = repo.head(own_directory(repo))
    if head.ref is None:
        raise Invalid(f"{field}: HEAD is detached, so there is no default branch: check out a branch", field)
    if not head.ref.startswith("refs/heads/"):
        raise Invalid(f"{field}: HEAD is not on a branch", field)
    branch = remotes.branch(head.ref.removeprefix("refs/heads/"), field)
    if head.commit is None and not repo.tip(prefix + branch):
        raise Invalid(f"{field}: the repository is empty: make a first commit", field)
    return branch
