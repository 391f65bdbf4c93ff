"""Merge-in turns of the script agent, in real repositories."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workers.agents import Agent, Heard
from workers.harness.base import Done, Failed, Message, ToolCall
from workers.process import Guardian

WHO = {
    "GIT_AUTHOR_NAME": "T",
    "GIT_AUTHOR_EMAIL": "t@example.com",
    "GIT_COMMITTER_NAME": "T",
    "GIT_COMMITTER_EMAIL": "t@example.com",
}


class Repository:
    """A repository on branch `task`, forked from `main`; `main` moves by `on_main`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        for name in ("both.txt", "gone.txt", "theirs.txt"):
            (root / name).write_text(f"{name}\n" * 5)
        (root / "bin").write_bytes(bytes(100))
        self.commit("base")
        self.git("checkout", "-q", "-b", "task")

    def git(self, *words: str) -> str:
        env = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        return subprocess.run(["git", *words], cwd=self.root, env=env, check=True, capture_output=True, text=True).stdout

    def commit(self, message: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def on_main(self, files: dict[str, bytes | None]) -> None:
        self.git("checkout", "-q", "main")
        self.change(files)
        self.commit("main moves")
        self.git("checkout", "-q", "task")

    def change(self, files: dict[str, bytes | None]) -> None:
        for name, content in files.items():
            if content is None:
                (self.root / name).unlink()
            else:
                (self.root / name).write_bytes(content)

    def contains_main(self) -> bool:
        return self.git("merge-base", "main", "HEAD") == self.git("rev-parse", "main")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "work")


@pytest.fixture
def agent(guardian: Guardian, tmp_path: Path, repository: Repository) -> Iterator[Agent]:
    made = Agent(guardian, tmp_path)
    yield made
    made.child.kill()


def merge(agent: Agent, text: str = "", ref: str = "main") -> list[Heard]:
    return agent.turn(purpose="merge_in", merge_ref=ref, task_title="A task", **({"text": text} if text else {"inputs": ()}))


def test_commits_everything_and_merges(agent: Agent, repository: Repository) -> None:
    repository.on_main({"theirs.txt": b"new\n"})
    repository.change({"mine.txt": b"mine\n", "gone.txt": None})
    heard = merge(agent)
    assert heard[-2:] == [Message("Merged main."), Done({"input_tokens": 0, "output_tokens": 2}, None, "Merged main.")]
    assert repository.git("status", "--porcelain") == "" and repository.contains_main()
    assert repository.git("log", "-1", "--format=%s|%an", "HEAD^1") == "A task|Byre\n"
    assert (repository.root / "theirs.txt").read_text() == "new\n" and not (repository.root / "gone.txt").exists()
    assert [output.arguments["command"].split()[:2] for output in heard if isinstance(output, ToolCall)] == [
        ["git", "commit"],
        ["git", "merge"],
    ]
    assert merge(agent)[-2] == Message("Merged main.")  # once more has nothing to do


CONFLICTS: dict[str, bytes | None] = {"both.txt": b"main\n", "gone.txt": b"changed\n", "bin": b"\1" * 100, "theirs.txt": None}


def conflict(repository: Repository) -> None:
    repository.on_main(CONFLICTS)
    repository.change({"both.txt": b"task\n", "gone.txt": None, "bin": b"\2" * 100, "theirs.txt": b"kept\n"})


def test_conflicts_are_ours_by_default(agent: Agent, repository: Repository) -> None:
    """Content, binary, deleted here and changed there, and the other way round."""
    conflict(repository)
    assert isinstance(merge(agent)[-1], Done)
    assert repository.git("status", "--porcelain") == "" and repository.contains_main()
    assert (repository.root / "both.txt").read_text() == "task\n" and not (repository.root / "gone.txt").exists()
    assert (repository.root / "bin").read_bytes() == b"\2" * 100 and (repository.root / "theirs.txt").read_text() == "kept\n"


def test_conflicts_are_left_when_told(agent: Agent, repository: Repository) -> None:
    conflict(repository)
    agent.turn("/onconflict leave")
    agent.restart()
    (text,) = [output.text for output in merge(agent) if isinstance(output, Message)]
    assert text == "Conflicts are left in: bin, both.txt, gone.txt, theirs.txt"
    assert "<<<<<<< " in (repository.root / "both.txt").read_text() and not repository.contains_main()
    assert repository.git("ls-files", "-u")
    # once more commits nothing over them; told `ours`, it settles them
    assert "Conflicts are left" in merge(agent)[-2].text  # type: ignore[union-attr]
    assert isinstance(merge(agent, "/onconflict ours")[-1], Done)
    assert repository.git("status", "--porcelain") == "" and repository.contains_main()
    assert (repository.root / "both.txt").read_text() == "task\n"


def test_conflicts_settled_by_hand_are_committed(agent: Agent, repository: Repository) -> None:
    repository.on_main({"both.txt": b"main\n"})
    repository.change({"both.txt": b"task\n"})
    merge(agent, "/onconflict leave")
    repository.change({"both.txt": b"settled\n"})
    merge(agent)
    assert repository.contains_main() and repository.git("show", "HEAD:both.txt") == "settled\n"


def test_hooks_and_other_programs_of_the_repository_do_not_run(agent: Agent, repository: Repository) -> None:
    repository.on_main({"theirs.txt": b"new\n"})
    canary = repository.root.parent / "canary"
    for hook in ("pre-commit", "commit-msg", "post-commit", "post-merge", "pre-merge-commit", "post-checkout"):
        script = repository.root / ".git/hooks" / hook
        script.write_text(f"#!/bin/sh\ntouch {canary}\n")
        script.chmod(0o755)
    repository.git("config", "core.fsmonitor", f"touch {canary}")
    canary.unlink(missing_ok=True)
    repository.change({"mine.txt": b"mine\n"})
    merge(agent)
    assert not canary.exists() and repository.git("log", "--oneline", "-1", "HEAD^2")


@pytest.mark.parametrize("ref", ["no-such-branch", "--help"])
def test_a_refused_merge_fails_the_turn(agent: Agent, ref: str) -> None:
    end = merge(agent, ref=ref)[-1]
    assert isinstance(end, Failed) and end.code == "merge_failed" and end.message


def test_not_a_repository(guardian: Guardian, tmp_path: Path) -> None:
    agent = Agent(guardian, tmp_path)
    end = merge(agent)[-1]
    assert end == Failed("merge_failed", "the workspace is not a git repository")
    agent.child.kill()
