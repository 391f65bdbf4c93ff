"""Rules of the inbox: what an item is, what may answer it, and what the agent is told.

Rules: `STEPS` is the only place where an item's state changes; choices are list items of a question's context, pick-one `( )` or pick-any
`[ ]`, never both; an answer is checked against its item before anything is written. Nothing here reads a clock.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from app.core.errors import Conflict, Invalid

Document = dict[str, Any]

STEPS = {
    ("open", "option"): "answered",
    ("open", "other"): "answered",
    ("open", "dismiss"): "dismissed",
    ("open", "supersede"): "superseded",
}
TAKES = {
    "question": ("option", "other", "dismiss"),
    "report": ("other", "dismiss"),
    "session_error": ("dismiss",),
    "rate_limited": ("dismiss",),
}
"""Which answers an item of each kind takes."""
PRIORITIES = ("blocked", "gate", "review", "fyi")
"""Highest first."""
STATES = ("open", "answered", "dismissed", "superseded")

LONGEST_TEXT = 64 * 1024
"""Characters of a question, its context, or an answer."""
MOST_OPTIONS = 50
MOST_ATTACHMENTS = 20
LONGEST_IMAGE = 7 * 2**20
"""Characters of a data URL: 5 MiB in base64."""

_CHOICE = re.compile(r"[ \t]*[-*+][ \t]+(?:(\()([ *xX]?)\)|(\[)([ xX*]?)\])[ \t]+(\S.*?)[ \t]*\Z")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})")
_IMAGE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}\Z")
_NEEDED = {
    "file": "path",
    "diff": "ref",
    "image": "image",
    "diagram": "mermaid",
    "task": "task_id",
    "snapshot": "snapshot_id",
    "url": "url",
}


def priority(kind: str, *, blocking: bool = False) -> str:
    """How urgent an item is."""
    if kind == "question":
        return "blocked" if blocking else "fyi"
    return {"session_error": "gate", "report": "review", "rate_limited": "fyi"}[kind]


def step(state: str, event: str) -> str:
    """The state after `event` (an answer's type, or "supersede"). Raises Conflict if the item is settled."""
    after = STEPS.get((state, event))
    if after is None:
        raise Conflict(f"the item is {state} already")
    return after


def choices(context: str) -> tuple[list[str], bool, list[str]]:
    """The choices in a question's context: their texts, whether several may be picked, the marked ones. Raises Invalid."""
    options: list[str] = []
    marked: list[str] = []
    sorts: set[bool] = set()
    fence = ""
    for line in context.splitlines():
        bar = _FENCE.match(line)
        if bar and (not fence or (bar[1].startswith(fence) and not line.strip().strip(fence[0]))):
            fence = "" if fence else bar[1]
        found = None if fence else _CHOICE.match(line)
        if found is None:
            continue
        sorts.add(found[3] is not None)
        if found[5] in options:
            raise Invalid(f"context: the choice {found[5][:80]!r} is there twice", "context")
        options.append(found[5])
        if (found[2] or found[4] or " ") != " ":
            marked.append(found[5])
    if len(sorts) > 1:
        raise Invalid("context: use `- ( )` for a pick-one or `- [ ]` for a pick-any question, not both", "context")
    if len(options) > MOST_OPTIONS:
        raise Invalid(f"context: at most {MOST_OPTIONS} choices", "context")
    multiple = sorts == {True}
    if not multiple and len(marked) > 1:
        raise Invalid("context: mark one choice of a pick-one question with `(*)`, not several", "context")
    return options, multiple, marked


def question(arguments: Mapping[str, Any]) -> Document:
    """The payload of a question that an agent asks with the arguments of `ask_human`. Raises Invalid."""
    asked, context = arguments["question"], arguments.get("context", "")
    why = arguments.get("why_blocked", "")
    for field, text in (("question", asked), ("context", context), ("why_blocked", why)):
        _check_text(text, field)
    if not asked.strip():
        raise Invalid("question: must not be empty", "question")
    attachments = arguments.get("attachments", [])
    check_attachments(attachments, "attachments")
    options, multiple, marked = choices(context)
    return {
        "question": asked,
        "context": context,
        "why_blocked": why,
        "options": options,
        "multiple": multiple,
        "recommended": marked,
        "attachments": list(attachments),
    }


def own_questions(tool: str, arguments: Any) -> list[Document]:
    """The payloads of what an agent asks with a question tool of its own program; empty for any other tool, or one we can't read.

    Known: `AskUserQuestion`, with `questions` of `question`, `options` (`label`, `description`) and `multiSelect`.
    """
    if tool != "AskUserQuestion" or not isinstance(arguments, Mapping) or not isinstance(arguments.get("questions"), list):
        return []
    found: list[Document] = []
    for asked in arguments["questions"][:MOST_OPTIONS]:
        try:
            box = "[ ]" if asked.get("multiSelect") else "( )"
            texts = [": ".join(filter(None, (o["label"], o.get("description")))) for o in asked.get("options", [])]
            context = "\n".join(f"- {box} {' '.join(text.split())}" for text in texts)
            found.append(question({"question": asked["question"], "context": context, "why_blocked": "the agent asks"}))
        except (Invalid, KeyError, TypeError, AttributeError):
            return []
    return found


def check_response(item: Mapping[str, Any], given: Mapping[str, Any], field: str) -> None:
    """Whether `given` can answer `item`. Raises Invalid, naming what of `field` is wrong; Conflict if the item is settled."""
    kind, text, options = given["type"], given.get("text", ""), given.get("options", [])
    if kind not in TAKES[item["kind"]]:
        raise Invalid(f"{field}.type: a {item['kind']} takes {' or '.join(TAKES[item['kind']])}", f"{field}.type")
    _check_text(text, f"{field}.text")
    check_attachments(given.get("attachments", []), f"{field}.attachments")
    if kind == "option":
        _check_options(item["payload"], options, text, field)
    elif options:
        raise Invalid(f"{field}.options: only an option has them", f"{field}.options")
    if kind == "other" and not text.strip():
        raise Invalid(f"{field}.text: must not be empty", f"{field}.text")
    step(item["state"], kind)


def _check_options(payload: Mapping[str, Any], options: Sequence[str], text: str, field: str) -> None:
    where = f"{field}.options"
    if not payload["options"]:
        raise Invalid(f"{field}.type: the question has no choices, answer with other", f"{field}.type")
    if not options:
        raise Invalid(f"{where}: name the chosen option", where)
    for option in options:
        if option not in payload["options"]:
            raise Invalid(f"{where}: the question has no choice {option[:80]!r}", where)
    if len(set(options)) != len(options):
        raise Invalid(f"{where}: a choice is there twice", where)
    if not payload["multiple"]:
        if len(options) > 1:
            raise Invalid(f"{where}: exactly one for a pick-one question", where)
        if text.strip():
            raise Invalid(f"{field}.text: a pick-one question takes no text beside the option; use other", f"{field}.text")


def check_attachments(attachments: Sequence[Mapping[str, Any]], field: str) -> None:
    """Whether each attachment has what its kind needs, and that is what it says. Raises Invalid."""
    if len(attachments) > MOST_ATTACHMENTS:
        raise Invalid(f"{field}: at most {MOST_ATTACHMENTS}", field)
    for i, attachment in enumerate(attachments):
        where = f"{field}[{i}]"
        needed = _NEEDED.get(attachment["kind"])
        if needed is None:
            raise Invalid(f"{where}.kind: must be one of {', '.join(_NEEDED)}", f"{where}.kind")
        value = attachment.get(needed)
        if not isinstance(value, str) or not value.strip():
            raise Invalid(f"{where}.{needed}: {attachment['kind']} needs it", f"{where}.{needed}")
        wrong = _fault(attachment["kind"], value, attachment)
        if wrong:
            raise Invalid(f"{where}.{needed}: {wrong}", f"{where}.{needed}")


def _fault(kind: str, value: str, attachment: Mapping[str, Any]) -> str:
    if kind == "image":
        return "" if len(value) <= LONGEST_IMAGE and _IMAGE.match(value) else "a data URL of a PNG, JPEG, GIF or WebP of 5 MiB"
    if len(value) > LONGEST_TEXT:
        return f"at most {LONGEST_TEXT} characters"
    if kind == "url" and not re.match(r"https?://[^\s/]+", value):
        return "must begin with http:// or https://"
    if kind == "diff" and (value.startswith("-") or re.search(r"\s|\x00", value)):
        return "is not a revision range"
    if kind == "file":
        if value.startswith("/") or "\0" in value or ".." in value.split("/"):
            return "must be relative to the repository and within it"
        start, end = attachment.get("start_line", 1), attachment.get("end_line", attachment.get("start_line", 1))
        if start < 1 or end < start:
            return "its lines must be in order, from 1"
    return ""


def _check_text(text: str, field: str) -> None:
    if len(text) > LONGEST_TEXT:
        raise Invalid(f"{field}: at most {LONGEST_TEXT} characters", field)
    if "\0" in text:
        raise Invalid(f"{field}: must not hold a zero byte", field)


def told(item: Mapping[str, Any], response: Mapping[str, Any], name: str) -> str:
    """What the agent is told of one answer; `name` is who gave it."""
    payload = item["payload"]
    if item["kind"] == "question":
        head = f"Answer from {name} to the question {payload['question'].strip()!r}:"
    else:
        head = f"Reply from {name} to your report:"
    parts = [head]
    options = response.get("options", [])
    parts += [f"- {option}" for option in options] if payload.get("multiple") else options
    if response.get("text", "").strip():
        parts.append(response["text"])
    parts += [f"Attached: {_described(attachment)}" for attachment in response["attachments"]]
    return "\n".join(parts)


def _described(attachment: Mapping[str, Any]) -> str:
    kind = attachment["kind"]
    value = "an image" if kind == "image" else attachment[_NEEDED[kind]]
    lines = ""
    if kind == "file" and "start_line" in attachment:
        lines = f" lines {attachment['start_line']} to {attachment.get('end_line', attachment['start_line'])}"
    caption = f" ({attachment['caption']})" if attachment.get("caption") else ""
    return f"{kind} {value}{lines}{caption}"


def rank(item: Mapping[str, Any]) -> tuple[int, str, str]:
    """Sorts items: highest priority first, then oldest."""
    return PRIORITIES.index(item["priority"]), item["created_at"], item["id"]
