"""Rules of the inbox."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core import inbox
from app.core.errors import Conflict, Invalid


@pytest.mark.parametrize(
    ("context", "options", "multiple", "marked"),
    [
        ("", [], False, []),
        ("no choices\n- a list item\n- [link](x)\n", [], False, []),
        ("- ( ) red\n- (*) blue\n", ["red", "blue"], False, ["blue"]),
        ("text\n\n* [ ] one\n  + [x] two \n- [X] **three**\n", ["one", "two", "**three**"], True, ["two", "**three**"]),
        ("```\n- ( ) in code\n```\n- ( ) out\n~~~\n- ( ) code too", ["out"], False, []),
        ("````\n```\n- ( ) still code\n````\n- ( ) out", ["out"], False, []),
        ("- () tight\n- (x) marked\r\n", ["tight", "marked"], False, ["marked"]),
    ],
)
def test_choices_are_list_items(context: str, options: list[str], multiple: bool, marked: list[str]) -> None:
    assert inbox.choices(context) == (options, multiple, marked)


@pytest.mark.parametrize(
    "context", ["- ( ) a\n- [ ] b", "- ( ) a\n- ( ) a", "- (*) a\n- (*) b", "\n".join(f"- [ ] {n}" for n in range(51))]
)
def test_choices_that_make_no_sense(context: str) -> None:
    with pytest.raises(Invalid, match="context"):
        inbox.choices(context)


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1), unique=True, max_size=50), st.booleans())
def test_any_text_can_be_a_choice(texts: list[str], multiple: bool) -> None:
    box = "[ ]" if multiple else "( )"
    found, several, _ = inbox.choices("\n".join(f"- {box} {text}" for text in texts))
    assert found == texts and several == (multiple and bool(texts))


@pytest.mark.parametrize("kind", list(inbox.TAKES))
@pytest.mark.parametrize("answer", ["option", "other", "dismiss"])
@pytest.mark.parametrize("state", inbox.STATES)
def test_every_item_with_every_answer(kind: str, answer: str, state: str) -> None:
    payload: dict[str, Any] = {"options": ["a", "b"], "multiple": False}
    item = {"kind": kind, "state": state, "payload": payload}
    given_one = {"option": {"options": ["a"]}, "other": {"text": "x"}, "dismiss": {}}[answer]
    expected: type[Exception] | None = None
    if answer not in {"question": ("option", "other", "dismiss"), "report": ("other", "dismiss")}.get(kind, ("dismiss",)):
        expected = Invalid
    elif state != "open":
        expected = Conflict
    if expected is None:
        inbox.check_response(item, {"type": answer, **given_one}, "responses[0]")
    else:
        with pytest.raises(expected):
            inbox.check_response(item, {"type": answer, **given_one}, "responses[0]")


@pytest.mark.parametrize(
    ("attachment", "field"),
    [
        ({"kind": "file", "path": "a/b.py", "start_line": 3, "end_line": 4}, None),
        ({"kind": "file", "path": "/etc/passwd"}, "path"),
        ({"kind": "file", "path": "a/../../b"}, "path"),
        ({"kind": "file", "path": "a", "start_line": 4, "end_line": 3}, "path"),
        ({"kind": "file"}, "path"),
        ({"kind": "diff", "ref": "main..HEAD~2"}, None),
        ({"kind": "diff", "ref": "--output=x"}, "ref"),
        ({"kind": "image", "image": "data:image/png;base64,AAAA"}, None),
        ({"kind": "image", "image": "data:text/html;base64,AAAA"}, "image"),
        ({"kind": "diagram", "mermaid": "graph TD"}, None),
        ({"kind": "url", "url": "https://example.com/x"}, None),
        ({"kind": "url", "url": "javascript:alert(1)"}, "url"),
        ({"kind": "task", "task_id": "x"}, None),
        ({"kind": "snapshot"}, "snapshot_id"),
        ({"kind": "nonsense"}, "kind"),
    ],
)
def test_attachments_are_checked_by_kind(attachment: dict[str, Any], field: str | None) -> None:
    if field is None:
        inbox.check_attachments([attachment], "attachments")
    else:
        with pytest.raises(Invalid, match=re.escape(f"attachments[0].{field}")):
            inbox.check_attachments([attachment], "attachments")


def test_an_agent_s_own_question_tool() -> None:
    asked = {
        "questions": [
            {
                "question": "Which?",
                "options": [{"label": "A", "description": "the\nfirst"}, {"label": "B"}],
                "multiSelect": True,
            },
            {"question": "Why?"},
        ]
    }
    first, second = inbox.own_questions("AskUserQuestion", asked)
    assert (first["question"], first["options"], first["multiple"]) == ("Which?", ["A: the first", "B"], True)
    assert (second["question"], second["options"]) == ("Why?", [])
    for tool, arguments in (("Read", asked), ("AskUserQuestion", {"questions": [{}]}), ("AskUserQuestion", None)):
        assert inbox.own_questions(tool, arguments) == []


def test_what_the_agent_is_told() -> None:
    item = {"kind": "question", "payload": {"question": "Which?", "multiple": True}}
    response = {
        "options": ["a", "b"],
        "text": "/say x",
        "attachments": [{"kind": "url", "url": "https://x/", "caption": "see"}],
    }
    lines = inbox.told(item, response, "Ann").split("\n")
    assert lines == ["Answer from Ann to the question 'Which?':", "- a", "- b", "/say x", "Attached: url https://x/ (see)"]
