"""What a run of `byre gc` counts and says."""

from __future__ import annotations

import enum
from collections import defaultdict


class Kind(enum.StrEnum):
    """Why an object goes."""

    MERGED = "small segments that were merged a day ago"
    LEFT = "log that a restore left behind"
    CHECKPOINT = "checkpoints beyond retention"
    CHUNK = "native state that no checkpoint names"
    PENDING = "pending inputs that wait no more"
    ERASED = "leftovers of erased sessions"
    TRASH = "trash past its window"


class Tally:
    """What a run found, by tenant and kind: [objects, bytes]; and what it has to say besides."""

    def __init__(self) -> None:
        self.found: dict[str, dict[Kind, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0]))
        self.put_back = 0
        self.compacted = 0
        self.notes: list[str] = []

    def add(self, tenant: str, kind: Kind, size: int) -> None:
        """Counts one object."""
        row = self.found[tenant][kind]
        row[0] += 1
        row[1] += size

    def total(self) -> tuple[int, int]:
        """Objects and bytes of all."""
        rows = [row for kinds in self.found.values() for row in kinds.values()]
        return sum(row[0] for row in rows), sum(row[1] for row in rows)
