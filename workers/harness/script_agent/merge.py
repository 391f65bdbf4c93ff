"""The merge-in turn: commit everything, merge the default branch, settle conflicts as /onconflict said.

Rules: no program of the repository runs by this (hooks, fsmonitor, editor, pager, signing are off), and nothing asks for input.
Conflicts are either all settled with our side, or left with their markers and nothing committed over them.
"""

# No pathlib: it is slow to import.
# ruff: noqa: PTH123

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

_SAFE = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    "GIT_PAGER": "cat",
    "GIT_LITERAL_PATHSPECS": "1",
}
_OPTIONS = ["core.hooksPath=/dev/null", "core.fsmonitor=false", "commit.gpgSign=false", "protocol.ext.allow=never"]
_PREFIX = ["git", *(word for option in _OPTIONS for word in ("-c", option))]


class MergeFailed(Exception):
    """git refused for another reason than conflicts; the message is what it said."""


class Merge:
    """One merge-in of `ref`. `run(argv, env)` answers exit status and output; `shown` does the same visibly, as a tool call."""

    def __init__(
        self,
        run: Callable[[list[str], dict[str, str]], tuple[int, str]],
        shown: Callable[[list[str], dict[str, str]], tuple[int, str]],
        ref: str,
        title: str,
    ) -> None:
        self._run, self._shown, self._ref, self._title = run, shown, ref, title
        self._env = dict(os.environ) | _SAFE

    def play(self, on_conflict: str) -> str:
        """Does it and answers what to say about it. Raises MergeFailed."""
        if self._git("rev-parse", "--is-inside-work-tree")[0]:
            raise MergeFailed("the workspace is not a git repository")
        self._identify()
        if left := self._settle(on_conflict, earlier=True):
            return _conflicts(left)
        self._commit_all()
        strategy = ["-X", "ours"] if on_conflict == "ours" else []
        status, said = self._visible("merge", "--no-edit", "--no-verify", *strategy, "--", self._ref)
        if status == 0:
            return f"Merged {self._ref}."
        if not self._unmerged():
            raise MergeFailed(said.strip() or f"git merge exited {status}")
        if left := self._settle(on_conflict, earlier=False):
            return _conflicts(left)
        self._commit_all()
        return f"Merged {self._ref}; conflicts were settled with our side."

    def _settle(self, on_conflict: str, *, earlier: bool) -> list[str]:
        """Settles unmerged paths, answers those that are left. With `leave`, one may have been settled by hand since."""
        left = []
        for path, stages in self._unmerged().items():
            if on_conflict == "ours":
                keep = "2" in stages
                self._must("checkout", "--ours", "--", path) if keep else None
                self._must("add", "--", path) if keep else self._must("rm", "-q", "-f", "--", path)
            elif earlier and {"2", "3"} <= stages and _is_settled(path):
                self._must("add", "--", path)
            else:
                left.append(path)
        return left

    def _commit_all(self) -> None:
        self._must("add", "-A")
        merging = self._git("rev-parse", "-q", "--verify", "MERGE_HEAD")[0] == 0
        if merging:
            status, said = self._visible("commit", "--no-verify", "--no-edit")
        elif self._git("diff", "--cached", "--quiet")[0]:
            status, said = self._visible("commit", "--no-verify", "-q", "-m", self._title)
        else:
            return
        if status:
            raise MergeFailed(said.strip() or f"git commit exited {status}")

    def _identify(self) -> None:
        """Commits are by whoever the environment or the repository names, else by Byre."""
        for role in ("AUTHOR", "COMMITTER"):
            if self._git("var", f"GIT_{role}_IDENT")[0]:
                self._env |= {f"GIT_{role}_NAME": "Byre", f"GIT_{role}_EMAIL": "byre@localhost"}

    def _unmerged(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for entry in self._git("ls-files", "-u", "-z")[1].split("\0"):
            if entry:
                about, path = entry.split("\t", 1)
                found.setdefault(path, set()).add(about.split()[2])
        return found

    def _git(self, *words: str) -> tuple[int, str]:
        return self._run([*_PREFIX, *words], self._env)

    def _visible(self, *words: str) -> tuple[int, str]:
        return self._shown([*_PREFIX, *words], self._env)

    def _must(self, *words: str) -> None:
        status, said = self._git(*words)
        if status:
            raise MergeFailed(said.strip() or f"git {words[0]} exited {status}")


def _is_settled(path: str) -> bool:
    """Whether somebody took the markers out. A binary file never had any: that is for a person to `git add`."""
    try:
        with open(path, "rb") as content:
            return not any(line.startswith(b"<<<<<<< ") or b"\0" in line for line in content)
    except OSError:
        return False  # gone or not a file


def _conflicts(paths: list[str]) -> str:
    return "Conflicts are left in: " + ", ".join(paths)
