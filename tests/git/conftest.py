"""Fixtures of the git tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.git.lab import Lab, make


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    """A small project with an origin, opened by a worker."""
    return make(tmp_path)
