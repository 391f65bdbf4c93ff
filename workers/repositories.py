"""The repositories of projects on this worker: directories of users, and mirrors of git addresses.

Rules: git gets a project's credentials for calls to its origin only. A mirror is at the same path on every worker; where there is none
it is made from its bundles, and only without those from origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from app.core.errors import ByreError, Invalid
from app.git import credentials, mirror_store, mirrors, projects, remotes
from app.git.github_app import Tokens
from app.git.projects import Opened
from app.git.remotes import Remote
from app.git.repo import Repo
from app.git.run import Access
from app.git.vault import Vault
from app.git.view import Views
from app.services.project_settings import ProjectSettings, SettingsOfProjects
from app.services.writer import Clock
from app.store import keys
from app.store.contract import Store

Document = dict[str, Any]


class Roots(NamedTuple):
    """Where repositories may lie, and where worktrees are made."""

    repositories: tuple[Path, ...]
    workspaces: Path


class Repositories:
    """All projects' repositories, as one worker has them. `host` names what shares this worker's disk."""

    def __init__(
        self, views: Views, roots: Roots, store: Store, settings: SettingsOfProjects, apps: Tokens, host: str, clock: Clock
    ) -> None:
        self.views, self.roots, self.store, self.host = views, roots, store, host
        self._settings, self._apps, self._clock = settings, apps, clock

    def opened(self, project: Document) -> Opened:
        """The project's repository. Raises Invalid if it can't be used (any more), Unavailable."""
        if project["kind"] == "directory":
            return projects.open_directory(self.views, project["repo_path"], self.roots.repositories)
        remote = self._remote(project)
        mirror = self._mirror(project) or mirror_store.restore(self.views, self._place(project), self.vault(project))
        if mirror is None:
            mirror = mirrors.open_mirror(self.views, self._place(project))
            with self.access(project, remote) as access:
                mirrors.refresh(mirror, remote, access, seconds=mirrors.CLONE_SECONDS)
            self._save(project, mirror)
        return Opened(mirror, project["default_branch"], remote, remote)

    def present(self, project: Document) -> Repo | None:
        """The project's repository if there is anything of it here; nothing is fetched for it."""
        if project["kind"] != "directory":
            return self._mirror(project)
        try:
            return self.opened(project).repo
        except Invalid:
            return None

    def open_new(self, tenant: str, project_id: str, name: str, text: str) -> Document:
        """Opens the repository of a project that is to be created. Raises Invalid, Unavailable."""
        if not remotes.is_address(text):
            found = projects.open_directory(self.views, text, self.roots.repositories, new=True)
            return {
                "repo_path": str(found.repo.checkout),
                "kind": "directory",
                "default_branch": found.default_branch,
                "remote": found.remote,
                "notes": list(found.notes),
            }
        remote = remotes.remote(text, self.roots.repositories)
        project: Document = {"id": project_id, "tenant": tenant, "name": name, "repo_path": text, "kind": "url"}
        with self.access(project, remote) as access:
            project["default_branch"] = projects.probe(self.views, remote, access)
            mirror = mirrors.open_mirror(self.views, self._place(project))
            try:
                mirrors.refresh(mirror, remote, access, seconds=mirrors.CLONE_SECONDS)
                projects.default_tip(mirror, project["default_branch"])
                self._save(project, mirror)
            except BaseException:
                mirrors.remove(mirror)
                raise
        return {**{n: project[n] for n in ("repo_path", "kind", "default_branch")}, "remote": remote.url, "notes": []}

    def refresh(self, project: Document, found: Opened) -> list[str]:
        """Fetches origin, if there is one that answers soon; gives what is to be known if it doesn't. Raises Unavailable.

        What a mirror has got is in the store afterwards.
        """
        if found.origin is None:
            return []
        try:
            with self.access(project, found.origin) as access:
                if found.repo.checkout:
                    projects.fetch(found.repo, found.origin, access)
                else:
                    mirrors.refresh(found.repo, found.origin, access)
        except ByreError as error:
            return [f"origin was not fetched: {error.message}"]
        if not found.repo.checkout:
            self._save(project, found.repo)
        return []

    def have(self, project: Document, found: Opened, commit: str) -> None:
        """Sees to it that the repository has a commit that a task stands on, as far as bundles or origin have it. Raises Unavailable."""
        if found.repo.exists(commit):
            return
        if not found.repo.checkout:
            mirror_store.catch_up(found.repo, self.vault(project))
        if not found.repo.exists(commit):
            self.refresh(project, found)

    @contextmanager
    def access(self, project: Document, remote: Remote) -> Iterator[Access]:
        """What calls of git to the project's origin are given. Raises Corrupt, Unavailable, Invalid."""
        given = self.settings(project)
        owned = given.credentials
        if given.app and remote.kind == "https":
            owned = credentials.Credentials(token=self._apps.token(given.app))
        with credentials.access(self.views.git, remote, owned) as access:
            yield access

    def settings(self, project: Document) -> ProjectSettings:
        """What is set for the project. Raises Corrupt, Unavailable."""
        return self._settings.get(project["tenant"], project["name"])

    def vault(self, project: Document) -> Vault:
        """The bundles of a project's mirror."""
        owner = keys.project(project["tenant"], project["id"])
        return Vault(self.store, owner, self.views.git.private / "scratch")

    def _save(self, project: Document, mirror: Repo) -> None:
        mirror_store.save(mirror, self.vault(project), self.host, self._clock.id())

    def _mirror(self, project: Document) -> Repo | None:
        place = self._place(project)
        return Repo(self.views, place) if (place / "HEAD").is_file() else None

    def _place(self, project: Document) -> Path:
        return self.roots.workspaces / "mirrors" / str(project["tenant"]) / f"{project['id']}.git"

    def _remote(self, project: Document) -> Remote:
        return remotes.accepted(project["repo_path"], self.roots.repositories, "repo_path")
