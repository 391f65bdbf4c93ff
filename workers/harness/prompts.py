"""What agents are asked that have no command of their own for it: to merge, and to hand over."""

from __future__ import annotations

from workers.harness.base import Turn

HANDOFF_HEADINGS = ("Goal", "Decisions", "State", "Dead ends", "Open questions", "Files")


def text_of(turn: Turn) -> str:
    """The text of a turn for an agent that only knows messages."""
    said = "\n\n".join(message.text for message in turn.inputs)
    if turn.purpose == "message":
        return said
    asked = _merge(turn) if turn.purpose == "merge_in" else _handoff()
    return f"{asked}\n\n{said}" if said else asked


def _merge(turn: Turn) -> str:
    title = f" for the task {turn.task_title!r}" if turn.task_title else ""
    return (
        f"Bring the default branch into your work{title}. First commit everything that isn't committed. Then run "
        f"`git merge {turn.merge_ref}` in the workspace. If there are conflicts, settle each so that both sides' intent "
        "survives, and commit the merge. Check that what you had still works. Don't push and don't touch other branches. "
        "If you can't settle a conflict, leave it unmerged and say which and why."
    )


def _handoff() -> str:
    headings = ", ".join(HANDOFF_HEADINGS)
    return (
        "Your session ends here and another agent goes on with this work in the same workspace, without your memory. Write what it "
        f"needs, in Markdown, with exactly these headings: {headings}. Goal: what is wanted and how to see that it is done. "
        "Decisions: what was decided, and why. State: what is done, what isn't, what runs. Dead ends: what was tried and "
        "doesn't work. Open questions: what only a person can answer. Files: those that matter, a line each. "
        "Change nothing, answer only with the text."
    )
