"""byre over HTTP for the git tests: projects, tasks and turns of the script agent, on a deployment or a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.git.lab import origin_and_checkout
from tests.support.client import Client, Reply, until

Document = dict[str, Any]


class Board:
    """What one user does. `client` is an API, `token` the user's."""

    def __init__(self, client: Client, token: str) -> None:
        self.client, self.token = client, token

    def call(self, method: str, path: str, body: Any = None, *, timeout: float = 90.0) -> Reply:
        return self.client.call(method, f"/api{path}", body, token=self.token, timeout=timeout)

    def get(self, path: str, /, **query: Any) -> Any:
        """The JSON of a GET that must succeed."""
        reply = self.call("GET", path + (f"?{urlencode(query)}" if query else ""))
        assert reply.status == 200, (path, reply)
        return reply.json

    def post(self, path: str, body: Any = None) -> Any:
        """The JSON of a POST that must succeed."""
        reply = self.call("POST", path, body)
        assert reply.status in (200, 201, 202), (path, reply)
        return reply.json if reply.body else None

    def project(self, repo_path: str, name: str = "p") -> Document:
        return self.post("/projects", {"name": name, "repo_path": repo_path})  # type: ignore[no-any-return]

    def task(self, project: Document, title: str = "A task") -> Document:
        return self.post(f"/projects/{project['id']}/tasks", {"title": title})  # type: ignore[no-any-return]

    def session(self, task: Document, prompt: str) -> Document:
        return self.post(f"/tasks/{task['id']}/sessions", {"prompt": prompt})  # type: ignore[no-any-return]

    def idle(self, session: Document, *, seconds: float = 90.0) -> None:
        """Waits until the session's turn is over."""
        state = lambda: self.get(f"/sessions/{session['id']}")["state"] == "idle"  # noqa: E731
        until("the session is idle", state, seconds=seconds)

    def turn(self, task: Document, prompt: str) -> Document:
        """A new session's first turn, played to its end."""
        session = self.session(task, prompt)
        self.idle(session)
        return session

    def say(self, session: Document, text: str) -> None:
        """A further message, not waited for."""
        self.post(f"/sessions/{session['id']}/messages", {"text": text})

    def changed(self, task: Document, **query: Any) -> list[str]:
        """Paths that the task has changed."""
        return [file["path"] for file in self.get(f"/tasks/{task['id']}/changes", **query)["files"]]

    def kinds(self, task: Document) -> list[str]:
        return [event["kind"] for event in self.get(f"/tasks/{task['id']}/events", limit=1000)]


def repository(base: Path, files: dict[str, str] | None = None) -> tuple[Path, Path]:
    """A bare origin and a checkout below `base`."""
    base.mkdir(exist_ok=True)
    return origin_and_checkout(base, files)
