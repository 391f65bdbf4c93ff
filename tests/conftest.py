"""What holds for all tests: property tests try the same examples each time, and a busy machine is no failure."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("byre", deadline=None, derandomize=True, database=None)
settings.load_profile("byre")
