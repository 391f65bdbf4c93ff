"""What can go wrong when git is started, beside what the caller did wrong.

Rules: a message says which git command failed and git's own last words, with credentials in addresses masked; never an argument list.
All are `Unavailable` for whoever doesn't look closer: git's failure is not the caller's, and the next try may succeed.
"""

from __future__ import annotations

import re

from app.core.errors import Conflict, Unavailable

_CREDENTIALS = re.compile(r"(\w+://)[^/@\s]+@")
_SHOWN = 400


class GitError(Unavailable):
    """Base of all of them. `command` is git's subcommand."""

    def __init__(self, command: str, message: str) -> None:
        super().__init__(message)
        self.command = command


class GitFailed(GitError):
    """git ended with `status` (negative: a signal) and said `detail` (masked, at most 4 KiB)."""

    def __init__(self, command: str, status: int, detail: str) -> None:
        self.status = status
        self.detail = redacted(detail)[-4096:]
        super().__init__(command, f"git {command} failed: {last_words(self.detail) or f'exit status {status}'}")


class GitTimeout(GitError):
    """git took longer than `seconds` and was killed."""

    def __init__(self, command: str, seconds: float) -> None:
        super().__init__(command, f"git {command} took longer than {seconds:g} seconds")


class GitTooMuch(GitError):
    """git wrote more than `limit` bytes and was killed. `begun` is what was read before."""

    def __init__(self, command: str, limit: int, begun: bytes) -> None:
        super().__init__(command, f"git {command} answered more than {limit} bytes")
        self.begun = begun


class Moved(Conflict):
    """The branch on origin isn't where it was: fetch and do it again on its new tip."""


class Refused(Conflict):
    """origin took the objects but not the change: a hook, a protected branch, no right to write. The message is origin's."""


class MissingBase(Conflict):
    """A bundle stands on commits that this repository doesn't have."""


def redacted(text: str) -> str:
    """`text` without the user and password of addresses in it."""
    return _CREDENTIALS.sub(r"\1", text)


def last_words(text: str) -> str:
    """The line of git's output that says why: the first fatal one, else the last with something in it. At most 400 characters."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if line.startswith(("fatal:", "error:")):
            return line.split(":", 1)[1].strip()[:_SHOWN]
    return lines[-1][:_SHOWN] if lines else ""
