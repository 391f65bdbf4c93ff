"""What an archiver makes of a segment that somebody else put where it wanted to write.

Rules: two honest archivers of one generation copy the same stream, so at each common offset they have the same event ids. If they
differ, one of them copied a stream that the log has left behind, and the log must be recovered.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence


class Verdict(enum.StrEnum):
    """What to do next."""

    DONE = "done"  # the event that is waited for is in the archive
    GO_ON = "go on"  # archive further from the end of the segment that was found
    RECOVER = "recover"  # another history was archived: recover, then append again with the same id


def compare(found: Sequence[str], ours: Sequence[str], until: str | None) -> Verdict:
    """Judges the ids of a segment `found` at the head against `ours` from the same offset on; `until` is the id waited for."""
    if any(a != b for a, b in zip(found, ours, strict=False)):
        return Verdict.RECOVER
    return Verdict.DONE if until is not None and until in found else Verdict.GO_ON
