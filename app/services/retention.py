"""Which checkpoints of a session are kept.

Rules: what a restore has left behind goes; of the others as many as the deployment keeps stay, the newest first. Whatever the
setting, the one that the session would go on from stays, the newest that wasn't left behind stays, and so does every one that is
younger than a day: its turn may not have ended yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from app.core import chain as chains
from app.core import ids
from app.core.chain import Chain
from app.core.cursor import Position

DAY = 86_400


class Keep(NamedTuple):
    """How many checkpoints of a session are kept, and for how many seconds; None is for ever."""

    newest: int | None = None
    seconds: float | None = None

    @staticmethod
    def parse(text: str) -> Keep:
        """What the setting says: `all`, a number such as 20, or days such as 30d. Raises ValueError."""
        if text == "all":
            return Keep()
        return Keep(seconds=int(text[:-1]) * DAY) if text.endswith("d") else Keep(newest=int(text))


def expired(
    keep: Keep, chain: Chain, manifests: Mapping[str, Mapping[str, Any]], current: Iterable[str], now: float
) -> list[str]:
    """Ids of the checkpoints that go at unix time `now`, of `manifests` by id; `current` are ids that stay whatever else."""
    protected = set(current)
    out: list[str] = []
    kept = 0
    for ckpt in sorted(manifests, reverse=True):
        age = now - ids.time_ms(ckpt) / 1000
        covered = _covered(chain, manifests[ckpt])
        kept += covered
        if covered and kept == 1:
            protected.add(ckpt)
        over = (keep.newest is not None and kept > keep.newest) or (keep.seconds is not None and age > keep.seconds)
        if age > DAY and ckpt not in protected and (not covered or over):
            out.append(ckpt)
    return out


def _covered(chain: Chain, manifest: Mapping[str, Any]) -> bool:
    """Whether the place where the checkpoint's turn began is in the log. One that doesn't say where is taken as covered."""
    meta = manifest.get("meta", {})
    gen, offset = meta.get("gen"), meta.get("offset")
    if not isinstance(gen, int) or not isinstance(offset, int):
        return True
    return chains.covers(chain, Position(gen, offset), None)
