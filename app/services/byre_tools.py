"""What byre itself offers every agent in a task: to ask a person, to name the merge, to say how far it is.

`offered` is what a session's head object holds of it, in the form of `descriptors.py`; workers answer the calls (workers/byre_tools.py).
The names have no alias before them: agents know them as they are.
"""

from __future__ import annotations

from typing import Any

KIND = "byre"
Document = dict[str, Any]

_TEXT = {"type": "string"}
_ATTACHMENT: Document = {
    "type": "object",
    "required": ["kind"],
    "properties": {
        "kind": {"type": "string", "enum": ["file", "diff", "image", "diagram", "task", "snapshot", "url"]},
        "path": {"type": "string", "description": "file: path relative to the repository"},
        "start_line": {"type": "integer", "minimum": 1},
        "end_line": {"type": "integer", "minimum": 1},
        "ref": {"type": "string", "description": "diff: git revision range"},
        "url": {"type": "string", "description": "url: the address"},
        "mermaid": {"type": "string", "description": "diagram: Mermaid source"},
        "image": {"type": "string", "description": "image: data URL"},
        "task_id": _TEXT,
        "snapshot_id": _TEXT,
        "caption": _TEXT,
    },
    "additionalProperties": False,
}
TOOLS: tuple[Document, ...] = (
    {
        "name": "ask_human",
        "description": (
            "Asks the people who watch over this task. Put choices into `context` as a Markdown list: `- ( ) text` for pick-one "
            "(`- (*) text` is what you recommend), `- [ ] text` for pick-any (`- [x] text` recommended). With `blocking` true you can't go "
            "on without the answer: say in `why_blocked` why, then end your turn; the answer is your next message. Without it "
            "go on working; the answer comes as a message later."
        ),
        "input_schema": {
            "type": "object",
            "required": ["question"],
            "properties": {
                "question": {"type": "string", "description": "What you want to know, in one or two sentences"},
                "context": {"type": "string", "description": "What is needed to decide, in Markdown, with the choices"},
                "blocking": {"type": "boolean", "description": "Whether you can't go on without the answer"},
                "why_blocked": {"type": "string", "description": "blocking: why"},
                "attachments": {"type": "array", "items": _ATTACHMENT},
            },
            "additionalProperties": False,
        },
    },
    {
        "name": "set_merge_title",
        "description": "Sets the title of the commit that this task becomes when it is merged: one line that says what it does.",
        "input_schema": {
            "type": "object",
            "required": ["title"],
            "properties": {"title": {"type": "string"}},
            "additionalProperties": False,
        },
    },
    {
        "name": "report_progress",
        "description": "Says in a sentence how far you are, for people who watch. Nobody is disturbed by it.",
        "input_schema": {
            "type": "object",
            "required": ["text"],
            "properties": {"text": {"type": "string"}},
        },
    },
)


def offered() -> Document:
    """The fields of a session's head object that give it byre's tools."""
    return {
        "descriptors": list(TOOLS),
        "bindings": [{"alias": KIND, "kind": KIND, "tools": list(TOOLS)}],
        "routes": {tool["name"]: [0, tool["name"]] for tool in TOOLS},
    }
