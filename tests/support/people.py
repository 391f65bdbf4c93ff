"""People at work on tasks, for tests of byre: projects with a bare origin, tasks, agents, the inbox, merges.

Whatever workspace events it reads are held against their schemas.
"""

from __future__ import annotations

import functools
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import jsonschema

from app.http.schema import load
from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.client import Reply, until
from tests.support.deployment import TENANT, Api, Deployment

Document = dict[str, Any]
Documents = list[Document]
QUICK = {
    "BYRE_LEASE_SECONDS": "4",
    "BYRE_WARM_SECONDS": "2",
    "BYRE_DRAIN_SECONDS": "3",
    "BYRE_SWEEP_SECONDS": "0.5",
}


def git(place: Path, *words: str, ok: bool = True) -> str:
    """Runs git in `place` as somebody else than byre; its output."""
    who = ("-c", "user.name=Test User", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, "-C", str(place), *words], capture_output=True, text=True, check=False)
    assert not ok or done.returncode == 0, (words, done.stdout, done.stderr)
    return done.stdout.strip()


class Project:
    """A project: its bare origin (None: it has none), the user's checkout, and its id."""

    def __init__(self, people: People, base: Path, files: dict[str, str], *, origin: bool = True) -> None:
        base.mkdir()
        self.people, self.base, self.work = people, base, base / "work"
        self.work.mkdir()
        git(self.work, "init", "-q", "-b", "main")
        for name, text in files.items():
            (self.work / name).parent.mkdir(parents=True, exist_ok=True)
            (self.work / name).write_text(text)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-q", "-m", "first")
        self.origin = base / "origin.git" if origin else None
        if self.origin:
            git(base, "init", "-q", "--bare", "-b", "main", str(self.origin))
            git(self.work, "remote", "add", "origin", str(self.origin))
            git(self.work, "push", "-q", "-u", "origin", "main")
        made = people.call("POST", "/api/projects", {"name": base.name, "repo_path": str(self.work)})
        assert made.status == 201, made
        self.id = str(made.json["id"])

    @property
    def truth(self) -> Path:
        """The repository whose main branch counts."""
        return self.origin or self.work

    def task(self, title: str = "Some work") -> str:
        """A new task's id."""
        made = self.people.call("POST", f"/api/projects/{self.id}/tasks", {"title": title})
        assert made.status == 201, made
        return str(made.json["id"])

    def log(self, form: str = "%s") -> list[str]:
        """The main branch, newest first."""
        return git(self.truth, "log", "--first-parent", f"--format={form}", "main").split("\n")

    def show(self, path: str) -> str:
        """A file of the main branch."""
        return git(self.truth, "show", f"main:{path}")

    def push(self, name: str, text: str, title: str = "elsewhere") -> str:
        """Somebody else pushes a commit to origin's main; the commit."""
        assert self.origin
        other = self.base / f"other-{time.monotonic_ns()}"
        git(self.base, "clone", "-q", str(self.origin), str(other))
        (other / name).write_text(text)
        git(other, "add", "-A")
        git(other, "commit", "-q", "-m", title)
        git(other, "push", "-q", "origin", "HEAD:main")
        return git(other, "rev-parse", "HEAD")

    def hook(self, name: str, script: str) -> Path:
        """Gives the origin a hook; its file."""
        assert self.origin
        path = self.origin / "hooks" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path


class People:
    """People at a deployment: `boss` may do everything; others are made by `person`."""

    def __init__(self, it: Deployment) -> None:
        self.it = it
        self._made = 0
        self.boss = self.person("boss", "Test Boss", "boss@example.com")

    @property
    def api(self) -> Api:
        return self.it.apis[0]

    def call(self, method: str, path: str, body: Any = None, *, token: str | None = None, timeout: float = 60.0) -> Reply:
        """One request, as the boss unless another's token is given."""
        return self.api.call(method, path, body, token=self.boss if token is None else token, timeout=timeout)

    def person(self, login: str, name: str = "", email: str = "", *, tenant: str = TENANT) -> str:
        """A user's token; with `name` and `email` as git identity."""
        opened = open_store(self.it.store)
        try:
            _, token = Tokens(opened, self.it.env["BYRE_SECRET_KEY"]).create(tenant, "user", login=login)
        finally:
            opened.close()
        if name:
            assert self.call("PUT", "/api/me", {"git_name": name, "git_email": email}, token=token).status == 200
        return token

    def project(self, files: dict[str, str] | None = None, *, origin: bool = True) -> Project:
        """A project with one commit."""
        self._made += 1
        given = files or {"README.md": "hello\n", "a.txt": "one\ntwo\nthree\n"}
        return Project(self, self.it.data / f"project-{self._made}", given, origin=origin)

    # Agents

    def agent(self, task: str, prompt: str, *, token: str | None = None, **more: Any) -> str:
        """A new session with its first message; its id."""
        made = self.call("POST", f"/api/tasks/{task}/sessions", {"prompt": prompt, **more}, token=token)
        assert made.status == 201, made
        return str(made.json["id"])

    def work(self, task: str, prompt: str, **more: Any) -> str:
        """The same, and waits until it is idle."""
        session = self.agent(task, prompt, **more)
        self.idle(session)
        return session

    def say(self, session: str, text: str, *, token: str | None = None, **more: Any) -> None:
        """Sends a message and waits until its turn has ended."""
        sent = self.call("POST", f"/api/sessions/{session}/messages", {"text": text, **more}, token=token)
        assert sent.status == 202, sent
        self.idle(session)

    def state(self, session: str) -> str:
        reply = self.call("GET", f"/api/sessions/{session}")
        assert reply.status == 200, reply
        return str(reply.json["state"])

    def becomes(self, session: str, *wanted: str, seconds: float = 60.0) -> str:
        return until(f"{session} is {wanted}", lambda: (now := self.state(session)) in wanted and now, seconds=seconds) or ""

    def idle(self, session: str, *, seconds: float = 60.0) -> None:
        self.becomes(session, "idle", seconds=seconds)

    def sessions(self, task: str) -> Documents:
        found: Documents = self.call("GET", f"/api/tasks/{task}/sessions").json
        return found

    def events(self, task: str, *kinds: str) -> Documents:
        """The task's events, of these kinds if any are given."""
        found: Documents = []
        while True:
            after = found[-1]["seq"] if found else 0
            page = self.call("GET", f"/api/tasks/{task}/events?limit=1000&after={after}").json
            found += page
            if len(page) < 1000:
                break
        for event in found:
            check(event)
        return [event for event in found if not kinds or event["kind"] in kinds]

    # Inbox

    def inbox(self, task: str, *kinds: str, state: str = "open") -> Documents:
        """The task's items in `state`, of these kinds if any are given."""
        reply = self.call("GET", f"/api/inbox?task_id={task}&state={state}")
        assert reply.status == 200, reply
        return [item for item in reply.json if not kinds or item["kind"] in kinds]

    def item(self, item: str) -> Document:
        reply = self.call("GET", f"/api/inbox/{item}")
        assert reply.status == 200, reply
        found: Document = reply.json
        return found

    def answer(self, *responses: Document, token: str | None = None) -> Reply:
        """Answers items in one submission."""
        return self.call("POST", "/api/inbox/responses", {"responses": list(responses)}, token=token)

    def delivered(self, item: str) -> Document:
        """Waits until the item's answer has been delivered; the item."""

        def look() -> Document | None:
            found = self.item(item)
            return found if any(r.get("delivered_at") for r in found["responses"]) else None

        return until(f"the answer of {item} is delivered", look) or {}

    # Merges

    def merge(self, task: str, *, token: str | None = None) -> Reply:
        return self.call("POST", f"/api/tasks/{task}/merge", token=token)

    def task(self, task: str) -> Document:
        found: Document = self.call("GET", f"/api/tasks/{task}").json
        return found

    def merged(self, task: str, *, seconds: float = 90.0) -> Document:
        """Waits until the task is merged; the task."""

        def look() -> Document | None:
            found = self.task(task)
            return found if found["status"] == "merged" else None

        try:
            return until(f"{task} is merged", look, seconds=seconds) or {}
        except AssertionError as error:
            raise AssertionError(f"{error}; {self.inbox(task)}; {self.events(task, 'merge.failed')}") from error

    def gate(self, task: str, *, seconds: float = 90.0) -> Document:
        """Waits for an open `gate` item of the task, and until the task is idle; the item."""

        def look() -> Document | None:
            return next((item for item in self.inbox(task) if item["priority"] == "gate"), None)

        found = until(f"a gate item of {task}", look, seconds=seconds) or {}
        self.idle(found["agent_session_id"])
        return found


def ask(question: str, context: str = "", **more: Any) -> str:
    """A line for the script agent that asks people."""
    return "/ask " + json.dumps({"question": question, "context": context, **more})


@functools.cache
def _schema(kind: str) -> jsonschema.Draft202012Validator:
    documents = load()
    schemas = documents.event_schemas("byre")
    assert kind in schemas, f"an event of kind {kind!r}, which schemas/events.byre.json lacks"
    return jsonschema.Draft202012Validator(documents.whole("byre", schemas[kind]))


def check(event: Document) -> None:
    """Fails if `event`'s payload isn't what its kind's schema says."""
    _schema(event["kind"]).validate(event["payload"])
