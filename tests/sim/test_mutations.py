"""Each rule that is left out on purpose is missed by the simulation: that it finds nothing elsewhere means something."""

from __future__ import annotations

import pytest

from tests.sim.mutations import MUTATIONS
from tests.sim.run import play


@pytest.mark.parametrize("name", MUTATIONS)
def test_is_found(name: str) -> None:
    planted = MUTATIONS[name]
    for seed in range(planted.seeds):
        found = play(seed, mutation=planted.plant).violations
        if found:
            print(f"{name}: seed {seed}: {found[0]}")
            return
    pytest.fail(f"nothing notices in {planted.seeds} runs that {planted.what}")
