"""The diagram of a session's life cycle, from its table. `python -m tests.support.lifecycle` writes it into docs/lifecycle.md."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from app.core.session import TRANSITIONS, After, Status

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
BEGIN, END = "```mermaid\n", "```\n"


def diagram() -> str:
    """A Mermaid state diagram; an arrow for each pair of statuses, with the events that lead from one to the other."""
    arrows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for (status, row), target in TRANSITIONS.items():
        event = row.replace(":", ", reason ")
        if isinstance(target, Status):
            arrows[status, target].append(event)
        else:
            assert target is After.REST
            arrows[status, Status.QUEUED].append(f"{event} [an input waits]")
            arrows[status, Status.IDLE].append(f"{event} [none waits]")
    lines = ["stateDiagram-v2", f"    [*] --> {Status.IDLE}"]
    for (status, target), events in arrows.items():
        lines.append(f"    {status} --> {target}: {'<br>'.join(events)}")
    lines.append(f"    {Status.CLOSED} --> [*]")
    return "\n".join(lines) + "\n"


def shown(page: str) -> str:
    """The diagram that a page holds."""
    return page.split(BEGIN, 1)[1].split(END, 1)[0]


def main() -> None:
    head, rest = PAGE.read_text().split(BEGIN, 1)
    PAGE.write_text(head + BEGIN + diagram() + END + rest.split(END, 1)[1])


if __name__ == "__main__":
    main()
