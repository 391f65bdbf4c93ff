"""docs/faults.md: a row for every fault, and the tests that it names are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROWS = [
    f"{letter}{n}"
    for letter, last in (("A", 9), ("B", 7), ("C", 4), ("D", 6), ("E", 4), ("G", 3), ("F", 7), ("H", 2))
    for n in range(1, last + 1)
]


def rows() -> dict[str, str]:
    found = re.findall(r"^\| ([A-H]\d) \|.*\| (.*) \|$", (ROOT / "docs/faults.md").read_text(), re.M)
    assert len(found) == len(dict(found))
    return dict(found)


def test_every_fault_has_its_row() -> None:
    assert list(rows()) == ROWS


def test_the_tests_that_are_named_exist() -> None:
    for row, shown in rows().items():
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", shown)
        assert named or "not covered yet" in shown, row
        assert shown.count("`") == 2 * len(named), row
        for file, function in named:
            tree = ast.parse((ROOT / file).read_text())
            assert function in {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}, f"{row}: {file}::{function}"
