"""The documentation says what the code does: each setting, metric, life cycle, link and decision record."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from app.cli import _parser
from app.core import session
from app.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md")])


def rows(page: str) -> dict[str, str]:
    """Second column by first column of all tables of a page, for rows whose first column is code."""
    return dict(re.findall(r"^\| `([^`]+)` \| ([^|]*?) \|", (DOCS / page).read_text(), re.M))


def test_every_setting_has_a_row_with_its_default_and_every_row_a_setting() -> None:
    documented = rows("configuration.md")
    documented.pop("BYRE_CAP_<VENDOR>")
    assert documented == {entry.name: entry.default for entry in Settings.from_env({}).entries()}


def test_the_meaning_of_each_setting_is_the_one_that_the_code_gives() -> None:
    text = (DOCS / "configuration.md").read_text()
    assert [entry.name for entry in Settings.from_env({}).entries() if f"| {entry.meaning} |" not in text] == []


def diagram() -> str:
    """The life cycle of a session as the table in core has it, one arrow for all events between two states."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in session.TRANSITIONS.items():
        target: str = after.value if isinstance(after, session.Status) else "queued or idle"
        arrows.setdefault((state.value, target), []).append(event)
    lines = ["stateDiagram-v2", "    [*] --> idle"]
    for (state_name, target), events in arrows.items():
        names = sorted(event.replace(":", " by ") for event in events)
        if target == "queued or idle":
            lines.append(f"    {state_name} --> queued: {', '.join(names)} (an input waits)")
            lines.append(f"    {state_name} --> idle: {', '.join(names)} (none waits)")
        else:
            lines.append(f"    {state_name} --> {target}: {', '.join(names)}")
    lines.append("    closed --> [*]")
    return "\n".join(lines)


def test_the_diagram_of_a_session_is_the_table_in_core() -> None:
    found = re.search(r"```mermaid\n(stateDiagram-v2.*?)\n```", (DOCS / "architecture.md").read_text(), re.S)
    assert found
    assert found[1] == diagram(), "regenerate with tests.test_docs.diagram()"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if "://" not in link and not (page.parent / link).exists()] == []


def test_files_that_the_pages_name_exist() -> None:
    missing = []
    for page in PAGES:
        for name in re.findall(r"`((?:app|workers|tests|schemas|docs)/[\w./-]+\.\w+)`", page.read_text()):
            if not (ROOT / name).exists():
                missing.append((page.name, name))
    assert missing == []


def test_every_page_is_reached_from_the_readme() -> None:
    linked = set(re.findall(r"docs/[\w-]+\.md", (ROOT / "README.md").read_text()))
    assert linked == {f"docs/{page.name}" for page in DOCS.glob("*.md")}


def test_decision_records_are_numbered_and_whole() -> None:
    records = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        text = record.read_text()
        assert text.startswith(f"# {record.name[:4]}. "), record.name
        for part in ("Status: ", "## The question", "## The decision", "## What follows", "## What else was looked at"):
            assert part in text, (record.name, part)


def test_make_help_lists_every_target_for_people() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert phony
    text = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert [name for name in phony[1].split() if name != "needs" and f"make {name} " not in text] == []


def test_every_command_is_mentioned_in_the_pages() -> None:
    actions = next(action for action in _parser()._actions if action.choices)
    pages = "\n".join(page.read_text() for page in PAGES)
    assert actions.choices
    assert [name for name in actions.choices if f"byre {name}" not in pages] == []


def test_lock_files_have_hashes_and_no_addresses() -> None:
    for name in ("requirements.txt", "requirements-dev.txt"):
        text = (ROOT / name).read_text()
        assert not re.search(r"://|^\s*--(?!hash)|@ ", text, re.M), name
        pins = re.split(r"(?m)^(?=[a-z0-9].*==)", text)[1:]
        assert len(pins) > 40
        assert [pin.split()[0] for pin in pins if "--hash=sha256:" not in pin] == []
