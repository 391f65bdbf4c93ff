"""The real CLI in sessions of byre tasks: uploaded images, and another model from a message on."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from typing import Any

import pytest

from tests.agents.reading import texts
from tests.agents.test_claude_cli import png
from tests.support.client import until
from tests.support.dev import Stack
from tests.support.messages_api import MessagesApi

pytestmark = [pytest.mark.agents, pytest.mark.usefixtures("claude")]
GIT = ["git", "-c", "user.name=T", "-c", "user.email=t@example.com", "-c", "init.defaultBranch=main"]


@pytest.fixture
def task(stack: Stack, request: pytest.FixtureRequest) -> str:
    repository = stack.data / request.node.name
    subprocess.run([*GIT, "init", "-q", str(repository)], check=True)
    subprocess.run([*GIT, "commit", "-q", "--allow-empty", "-m", "begin"], cwd=repository, check=True)
    project = made(stack, "/api/projects", {"name": request.node.name, "repo_path": str(repository)})
    return str(made(stack, f"/api/projects/{project['id']}/tasks", {"title": "look"})["id"])


def made(stack: Stack, path: str, body: Any) -> Any:
    reply = stack.call("POST", path, body, token=stack.info["user_token"])
    assert reply.status in (200, 201, 202), reply
    return reply.json


def idle(stack: Stack, session: str) -> bool:
    return bool(stack.call("GET", f"/api/sessions/{session}", token=stack.info["user_token"]).json["state"] == "idle")


def test_another_model_from_a_message_on(stack: Stack, api: MessagesApi, task: str) -> None:
    session = made(stack, f"/api/tasks/{task}/sessions", {"prompt": "byre @first", "model": "claude-opus-4-8"})["id"]
    until("its turn has ended", lambda: idle(stack, session), seconds=60)
    made(stack, f"/api/sessions/{session}/messages", {"text": "byre @second", "model": "claude-sonnet-5"})
    until("its turn has ended", lambda: idle(stack, session), seconds=60)
    made(stack, f"/api/sessions/{session}/messages", {"text": "byre @third"})
    until("its turn has ended", lambda: idle(stack, session), seconds=60)
    models = {asked.text: asked.model for asked in api.asked if asked.text.startswith("byre @")}
    assert models == {"byre @first": "claude-opus-4-8", "byre @second": "claude-sonnet-5", "byre @third": "claude-sonnet-5"}


def test_an_uploaded_image_reaches_the_model(stack: Stack, task: str) -> None:
    picture, other = png(3, 2), png(4, 4)
    ids = [upload(stack, body) for body in (picture, other)]
    session = made(stack, f"/api/tasks/{task}/sessions", {"prompt": "@images", "images": ids})["id"]
    until("its turn has ended", lambda: idle(stack, session), seconds=60)
    assert texts(stack.events(session)) == [f"image/png {len(picture)}, image/png {len(other)}"]
    body = {"text": "x", "images": ["0" * 64]}
    assert stack.call("POST", f"/api/sessions/{session}/messages", body, token=stack.info["user_token"]).status in (400, 404)


def upload(stack: Stack, body: bytes) -> str:
    headers = {"Authorization": f"Bearer {stack.info['user_token']}", "Content-Type": "image/png"}
    request = urllib.request.Request(f"{stack.info['url']}/api/blobs", body, headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return str(json.load(answer)["id"])
