"""How large the tasks of a project are: their worktrees, as the worker that has one measured it last, and their bundles in the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from app.core.errors import Missing
from app.git.vault import Vault
from app.store import keys
from app.store.contract import Absent, Store
from app.store.puts import read_json
from app.store.trash import Trash, patiently


class TaskSize(NamedTuple):
    """Bytes of one task. `worktree` is None where nobody has measured it yet."""

    task: str
    title: str
    status: str
    worktree: int | None
    bundles: int


def of_project(store: Store, tenant: str, name: str) -> list[TaskSize]:
    """All tasks of the project called `name`, oldest first. Raises Missing, Unavailable, Corrupt."""
    try:
        holder, _ = patiently(lambda: read_json(store, keys.project_name(tenant, name)))
    except Absent:
        raise Missing(f"{tenant} has no project {name[:80]!r}") from None
    found = []
    for marker in Trash(store).under(keys.project_tasks_prefix(tenant, holder["project"])):
        task = keys.last_part(marker)
        doc = _read(store, keys.task(tenant, task))
        if doc:
            size = _read(store, keys.task(tenant, task, "size.json"))
            vault = Vault(store, keys.task(tenant, task), Path())
            found.append(TaskSize(task, doc["title"], doc["status"], size.get("worktree_bytes"), vault.bytes()))
    return found


def _read(store: Store, key: str) -> dict[str, Any]:
    try:
        return patiently(lambda: read_json(store, key))[0]
    except Absent:
        return {}
