"""Listing a directory store in the order of a bucket: by the bytes of the full key.

That isn't the order of names: the folder "a" stands for keys that begin with "a/", so "a-b" and "a.json" come before it. Only
the folders that a page needs are read. Empty folders don't exist for a bucket: they are passed over, and old ones cleared away.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

from app.store.contract import Keys, is_part

EMPTY_FOLDER_SECONDS = 3600.0  # age at which an empty folder is cleared away


def page(root: Path, prefix: str, start_after: str, limit: int) -> Keys:
    """Up to `limit` keys of files below `root` that begin with `prefix` and are greater than `start_after`. Raises OSError."""
    base = prefix[: prefix.rfind("/") + 1]
    return list(islice(_keys(root, base, prefix, start_after), limit))


def page_of_folders(root: Path, prefix: str, start_after: str, limit: int) -> Keys:
    """Up to `limit` names of folders in `prefix` that hold files, after `start_after`, by `name + "/"`. Raises OSError."""
    after = f"{start_after}/" if start_after else ""
    names = [f"{entry.name}/" for entry in _entries(root / prefix) if entry.is_dir(follow_symlinks=False)]
    later = sorted(name for name in names if name > after and is_part(name[:-1]))
    return list(islice((name[:-1] for name in later if _holds_files(root / prefix / name)), limit))


def _keys(root: Path, base: str, prefix: str, start_after: str) -> Iterator[str]:
    """Keys below the folder `base` ("" or ending in "/"), ascending."""
    found: list[str] = []
    for entry in _entries(root / base):
        key = base + entry.name + ("/" if entry.is_dir(follow_symlinks=False) else "")
        wanted = key > start_after or (key.endswith("/") and start_after.startswith(key))
        if wanted and key.startswith(prefix) and is_part(entry.name):
            found.append(key)
    for key in sorted(found):
        if key.endswith("/"):
            yield from _keys(root, key, prefix, start_after)
        else:
            yield key


def _entries(folder: Path) -> Iterator[os.DirEntry[str]]:
    with suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        yield from entries


def _holds_files(folder: Path) -> bool:
    empty = True
    for entry in _entries(folder):
        empty = False
        if not is_part(entry.name):
            continue
        if not entry.is_dir(follow_symlinks=False) or _holds_files(folder / entry.name):
            return True
    if empty:
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > EMPTY_FOLDER_SECONDS:
                folder.rmdir()
    return False
