"""Projects by address: a private one over https with a token or a GitHub App, what is said when it can't be opened, its set-up."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from app.git.credentials import Credentials, access
from app.git.remotes import Remote
from app.git.run import Git
from app.services.tokens import Tokens
from app.store.open import open_store
from tests.git.board import Board, repository
from tests.git.https_server import GitServer
from tests.git.lab import git
from tests.support.deployment import TENANT, Deployment, deployment
from tests.support.dev import BYRE
from tests.tools.loopback import Certificates

TOKEN = "ghs_averysecrettoken0123456789"


def board(it: Deployment) -> Board:
    store = open_store(it.store)
    _, token = Tokens(store, it.env["BYRE_SECRET_KEY"]).create(TENANT, "user", login="ann")
    store.close()
    return Board(it.apis[0], token)


def byre(it: Deployment, *words: str, data: str = "") -> str:
    done = subprocess.run([*BYRE, *words], env=it.env, input=data, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, GitServer, Path]]:
    base = tmp_path_factory.mktemp("private")
    origin, _ = repository(base / "repos")
    authority = Certificates(base)
    with contextlib.ExitStack() as stack:
        server = GitServer(base / "repos", authority.server("localhost"), "x-access-token", TOKEN)
        stack.callback(server.close)
        allow = f"{authority.authority},{server.host}"
        it = stack.enter_context(deployment(workers=1, env={"BYRE_OUTGOING_ALLOW": allow, "BYRE_WARM_SECONDS": "1"}))
        yield it, server, origin


def secrets_in(it: Deployment) -> list[Path]:
    """Files of the deployment (store, workspaces, logs) in which the token stands in clear."""
    found = []
    for path in it.data.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # what is being written has a name for a moment
            if path.is_file() and not path.is_symlink() and TOKEN.encode() in path.read_bytes():
                found.append(path)
    return found


def test_a_private_project_opens_with_its_token_and_says_so_without(served: tuple[Deployment, GitServer, Path]) -> None:
    it, server, origin = served
    user, url = board(it), f"https://{server.host}/origin.git"
    refused = user.call("POST", "/projects", {"name": "private", "repo_path": url})
    assert refused.status == 400 and "access is denied: set the project's credentials" in refused.json["message"], refused
    byre(it, "project", "credentials", "private", "--tenant", TENANT, data=TOKEN + "\n")
    assert TOKEN not in byre(it, "project", "show", "private", "--tenant", TENANT)
    byre(
        it, "project", "setup", "private", "--tenant", TENANT, "--command", "echo set up by $WHO > set-up.txt; echo done; exit 3",
        "--environment", "-", data="WHO=byre\n",
    )  # fmt: skip
    project = user.project(url, "private")
    assert project["default_branch"] == "main" and project["remote"] == url and project["repo_path"] == url
    assert user.call("PUT", "/me", {"git_name": "Ann", "git_email": "ann@example.com"}).status == 200
    task = user.task(project)
    user.turn(task, "/run echo $WHO > a.txt && git commit -qam mine && git log -1 --format='%an <%ae>' > who.txt")
    place = Path(task["worktree_path"])
    assert (place / "set-up.txt").read_text() == "set up by byre\n" and (place / "a.txt").read_text() == "byre\n"
    assert (place / "who.txt").read_text() == "Ann <ann@example.com>\n"
    events = user.get(f"/tasks/{task['id']}/events", limit=1000)
    setup = [event["payload"] for event in events if event["kind"] == "task.setup"]
    assert [(said["exit_status"], said["output"]) for said in setup] == [(3, "done\n")]
    assert user.changed(task) == ["a.txt", "set-up.txt", "who.txt"]
    git(origin.parent / "work", "commit", "-q", "--allow-empty", "-m", "newer")
    git(origin.parent / "work", "push", "-q", "origin", "main")
    assert user.task(project, "A later one")["base_ref"] == git(origin, "rev-parse", "main"), "not fetched"
    assert secrets_in(it) == []


def test_a_github_app_opens_a_project(served: tuple[Deployment, GitServer, Path]) -> None:
    it, server, _ = served
    key = rsa.generate_private_key(65537, 2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    byre(
        it, "project", "credentials", "app", "--tenant", TENANT, "--kind", "app", "--app", "12", "--installation", "34",
        "--api", f"https://{server.host}", data=pem,
    )  # fmt: skip
    assert board(it).project(f"https://{server.host}/origin.git", "app")["default_branch"] == "main"
    assert secrets_in(it) == []


def test_what_can_t_be_opened_is_said(served: tuple[Deployment, GitServer, Path]) -> None:
    it, server, origin = served
    user = board(it)
    byre(it, "project", "credentials", "wrong", "--tenant", TENANT, data=TOKEN)
    for path, said in (("nope.git", "no such repository"), ("empty.git", "empty")):
        if path == "empty.git":
            git(origin.parent, "init", "-q", "--bare", path)
        reply = user.call("POST", "/projects", {"name": "wrong", "repo_path": f"https://{server.host}/{path}"})
        assert reply.status == 400 and said in reply.json["message"], reply
    for url in ("https://169.254.169.254/a.git", "https://0x7f000001/a.git", "https://[fe80::1]/a", "git://0.0.0.0/a"):
        assert user.call("POST", "/projects", {"name": "wrong", "repo_path": url}).status == 400, url
    assert not list((it.data / "workspaces" / "mirrors").rglob("new-*"))
    user.project(f"https://{server.host}/origin.git", "wrong")
    kept = [it.data / "workspaces" / "mirrors" / TENANT, it.data / "store" / "tenants" / TENANT / "projects"]
    before = [sorted(each.iterdir()) for each in kept]
    for address in (f"https://{server.host}/origin.git", f"https://{server.host}/empty.git"):
        reply = user.call("POST", "/projects", {"name": "wrong", "repo_path": address})
        assert reply.status == 400 and "there is a project 'wrong' already" in reply.json["message"], reply
    assert [sorted(each.iterdir()) for each in kept] == before


def test_a_token_goes_to_its_own_host_only_and_a_key_is_a_file_for_the_time_of_the_call(tmp_path: Path) -> None:
    runner = Git(tmp_path / "private")
    remote = Remote("https", "https://host.example/a", "host.example")
    with access(runner, remote, Credentials(token=TOKEN)) as given:
        ask = given.environment["GIT_ASKPASS"]

        def answer(question: str) -> str:
            env = {**given.environment, "PATH": "/usr/bin:/bin"}
            done = subprocess.run([ask, question], env=env, capture_output=True, text=True, check=False)
            return done.stdout.strip()

        assert answer("Username for 'https://host.example': ") == "x-access-token"
        assert answer("Password for 'https://x-access-token@host.example': ") == TOKEN
        for elsewhere in ("https://x-access-token@evil.example", "http://x-access-token@host.example", "https://host.example"):
            assert answer(f"Password for '{elsewhere}': ") == ""
    key = "-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n-----END OPENSSH PRIVATE KEY-----"
    with access(runner, Remote("ssh", "git@host.example:a", "host.example"), Credentials(deploy_key=key)) as given:
        files = list((tmp_path / "private").glob("key-*/key"))
        assert [oct(file.stat().st_mode & 0o777) for file in files] == ["0o600"]
        assert (
            "StrictHostKeyChecking" in given.environment["GIT_SSH_COMMAND"]
            and str(files[0]) in given.environment["GIT_SSH_COMMAND"]
        )
    assert not list((tmp_path / "private").glob("key-*"))
