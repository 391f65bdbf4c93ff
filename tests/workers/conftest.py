"""A guardian for each test, closed after it, with everything that it started."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.process import Guardian


@pytest.fixture
def guardian(tmp_path: Path) -> Iterator[Guardian]:
    made = Guardian.start(tmp_path / "state")
    yield made
    made.close()
