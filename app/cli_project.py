"""`byre project`: credentials, set-up command and environment of projects. It needs the object store and the secret key, not a server.

Rules: a secret comes from standard input or a file, never from the command line, where others on the machine would see it; it is never
shown. A project is named, not yet looked for: a private one is created after its credentials are set.
"""

from __future__ import annotations

import argparse
import getpass
import sys
from pathlib import Path

from app import wiring
from app.core.errors import ByreError, Invalid, Missing
from app.services import task_sizes
from app.services.project_settings import LONGEST, App, SettingsOfProjects
from app.settings import Settings
from app.store.contract import Store, StoreError


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Does what `arguments` (see `app/cli.py`) ask for; returns the exit status."""
    store = wiring.store_of(settings)
    try:
        projects = wiring.project_settings_of(settings, store)
        actions = {"credentials": _credentials, "setup": _setup, "pull-requests": _pull_requests, "show": _show}
        actions[arguments.action](projects, arguments)
        if arguments.action == "show":
            _show_tasks(store, arguments)
    except (ByreError, StoreError, OSError, ValueError) as error:
        print(f"byre: {error}", file=sys.stderr)
        return 1
    finally:
        store.close()
    return 0


def _credentials(projects: SettingsOfProjects, arguments: argparse.Namespace) -> None:
    tenant, name = arguments.tenant, arguments.name
    if arguments.delete:
        projects.drop_credentials(tenant, name)
        print(f"the credentials of {name} are deleted", file=sys.stderr)
        return
    secret = getpass.getpass("Token: ") if sys.stdin.isatty() else sys.stdin.read(LONGEST + 2)
    if arguments.kind == "token":
        projects.set_token(tenant, name, secret.strip(), arguments.user)
    elif arguments.kind == "deploy-key":
        projects.set_deploy_key(tenant, name, secret)
    else:
        if not arguments.app or not arguments.installation:
            raise Invalid("--kind app needs --app and --installation", "app")
        given = App(arguments.app, arguments.installation, secret)
        projects.set_app(tenant, name, given._replace(api=arguments.api) if arguments.api else given)
    print(f"the credentials of {name} are set for {tenant}", file=sys.stderr)


def _setup(projects: SettingsOfProjects, arguments: argparse.Namespace) -> None:
    text = ""
    if arguments.environment:
        text = sys.stdin.read() if arguments.environment == "-" else Path(arguments.environment).read_text()
    variables = {}
    for line in text.splitlines():
        variable, equals, value = line.partition("=")
        if line.strip() and not line.startswith("#"):
            if not equals:
                raise Invalid(f"environment: {variable[:64]!r} has no value: write NAME=VALUE, one a line", "environment")
            variables[variable.strip()] = value
    projects.set_setup(arguments.tenant, arguments.name, arguments.command, arguments.seconds, variables)
    print(f"the set-up of {arguments.name} is kept; new worktrees get it", file=sys.stderr)


def _pull_requests(projects: SettingsOfProjects, arguments: argparse.Namespace) -> None:
    on = arguments.state == "on"
    projects.set_pull_requests(arguments.tenant, arguments.name, on)
    print(f"tasks of {arguments.name} are {'offered as pull requests' if on else 'merged by byre'}", file=sys.stderr)


def _show(projects: SettingsOfProjects, arguments: argparse.Namespace) -> None:
    found = projects.get(arguments.tenant, arguments.name)
    kind = "none"
    if found.app:
        kind = f"GitHub App {found.app.id}, installation {found.app.installation}"
    elif found.credentials:
        kind = "deploy key" if found.credentials.deploy_key else f"token of {found.credentials.user}"
    print(f"credentials  {kind}")
    print(f"set-up       {found.setup or 'none'}" + (f" (at most {found.seconds} s)" if found.setup else ""))
    print(f"merging      {'by pull requests' if found.pull_requests else 'by byre'}")
    print(f"environment  {' '.join(sorted(found.environment)) or 'none'}")


def _show_tasks(store: Store, arguments: argparse.Namespace) -> None:
    try:
        tasks = task_sizes.of_project(store, arguments.tenant, arguments.name)
    except Missing:
        print("tasks        none: there is no such project yet")
        return
    row = "{:<32}  {:<9}  {:>12}  {:>12}  {}".format
    print(row("TASK", "STATUS", "WORKTREE", "IN STORE", "TITLE"))
    for each in tasks:
        print(row(each.task, each.status, "-" if each.worktree is None else each.worktree, each.bundles, each.title))
