"""Pushing to origin.

Rules: never by force. What origin says about one ref decides: it took it (or had it already), its branch has moved (`Moved`), or it doesn't
want it (`Refused`, with its own words). Our remote-tracking ref follows what it took.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from app.core.errors import Unavailable
from app.git import remotes
from app.git.errors import Moved, Refused, last_words, redacted
from app.git.projects import refusal
from app.git.remotes import Remote
from app.git.repo import Repo
from app.git.run import Access

PUSH_SECONDS = 120.0
_MOVED = (
    "fetch first",
    "non-fast-forward",
    "stale info",
    "cannot lock ref",
    "failed to update ref",
    "incorrect old value",
    "failed to lock",
)
_SAID = re.compile(r"^remote: ?(.*?)\s*$", re.M)
_MAX_SAID = 1000


def push(repo: Repo, target: Remote, access: Access, commit: str, branch: str, *, seconds: float = PUSH_SECONDS) -> None:
    """Makes `branch` of `target` be `commit`, if that is a fast-forward. Raises Moved, Refused, Invalid (no access), Unavailable."""
    ref = f"refs/heads/{remotes.branch(branch)}"
    done = repo.run(
        "push", "--porcelain", "--no-follow-tags", "--no-recurse-submodules", "--no-verify", "--", target.url, f"{commit}:{ref}",
        access=access, seconds=seconds, ok=(), limit=2**20,
    )  # fmt: skip
    line = next((line for line in done.text.splitlines() if f"\t{commit}:{ref}\t" in line), "")
    if line[:1] in ("!", "") or done.status:
        raise _why(line, done.status, done.err)
    if repo.tip(f"refs/remotes/origin/{branch}") or repo.checkout is None:
        repo.run("update-ref", f"refs/remotes/origin/{branch}", commit)


def pull_request_url(origin: Remote, branch: str, default_branch: str) -> str:
    """Where a person opens a pull request for a pushed branch; "" where we don't know."""
    found = re.match(
        r"(?:https://|ssh://(?:[^@/]+@)?|git://|(?:[^@/]+@)?)([A-Za-z0-9.-]+)(?::[0-9]+)?[:/](.+?)(?:\.git)?/?\Z", origin.url
    )
    if not found or origin.files:
        return ""
    host, path = found.groups()
    if "gitlab" in host:
        names = (("source_branch", branch), ("target_branch", default_branch))
        return f"https://{host}/{path}/-/merge_requests/new?" + "&".join(
            f"merge_request%5B{name}%5D={quote(value, safe='')}" for name, value in names
        )
    if "github" in host:
        return f"https://{host}/{path}/compare/{quote(default_branch)}...{quote(branch)}?expand=1"
    return ""


def _why(line: str, status: int, err: str) -> Exception:
    reason = line.rsplit("\t", 1)[-1]
    if not line:
        return refusal(err, status)
    if any(sign in reason for sign in _MOVED):
        return Moved("the default branch has moved on origin")
    said = " ".join(text for text in _SAID.findall(redacted(err)) if text)[:_MAX_SAID]
    if "[remote rejected]" in reason or "[rejected]" in reason:
        return Refused(f"origin refused the push: {said or reason.strip('[]')}")
    return Unavailable(f"the push failed: {said or last_words(redacted(err)) or reason}")
