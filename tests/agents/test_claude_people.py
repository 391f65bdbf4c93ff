"""A task's whole way with the real CLI: its agent asks people, gets their answer, and brings in what has moved before the merge.

The model is scripted; the tools that it calls are real: byre's over the bridge, and the CLI's own for files, git and questions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.deployment import deployment
from tests.support.messages_api import MessagesApi
from tests.support.npm_agents import required
from tests.support.people import QUICK, People, git

MERGE_REQUEST = r"`(git merge [^`]+)`"
COMMIT = "git add -A && git commit -qm work && "


def tool(name: str, **arguments: Any) -> str:
    """A line that has the scripted model call a tool."""
    return f"@tool {name} {json.dumps(arguments)}"


@pytest.fixture(scope="module")
def api() -> Iterator[MessagesApi]:
    merge = json.dumps({"command": f"{COMMIT}MERGE", "description": "Bring main in"}).replace("MERGE", r"\1")
    with MessagesApi({MERGE_REQUEST: f"@tool Bash {merge}\nBrought in."}) as api:
        yield api


@pytest.fixture(scope="module")
def people(api: MessagesApi) -> Iterator[People]:
    env = {
        "BYRE_HARNESSES": "claude",
        "BYRE_VENDOR": "claude",
        "BYRE_CLAUDE_COMMAND": required("claude"),
        "BYRE_CLAUDE_ENV": f"ANTHROPIC_BASE_URL={api.url};CLAUDE_CODE_MAX_RETRIES=1",
        "BYRE_ANTHROPIC_API_KEY": "sk-of-the-deployment-0123456789",
    }
    with deployment(env={**QUICK, **env}) as it:
        yield People(it)


def said(people: People, task: str, session: str) -> str:
    """What the agent was told, as its own memory has it."""
    people.say(session, "@recall")
    return str(people.events(task, "agent.text")[-1]["payload"]["text"])


def test_question_answer_title_and_a_merge_although_main_has_moved(people: People, api: MessagesApi) -> None:
    project = people.project()
    task = project.task("Add b")
    asked = {"question": "Which?", "context": "Pick:\n- ( ) red\n- (*) blue\n", "blocking": True, "why_blocked": "need it"}
    prompt = [
        tool("Bash", command="echo b > b.txt", description="Write b"),
        tool("mcp__byre__set_merge_title", title="Add file b"),
        tool("mcp__byre__ask_human", **asked),
        "I wait for people.",
    ]
    session = people.work(task, "\n".join(prompt))
    [question] = people.inbox(task, "question")
    assert question["blocking"] and question["priority"] == "blocked", question
    payload = question["payload"]
    assert (payload["options"], payload["recommended"], payload["multiple"]) == (["red", "blue"], ["blue"], False)
    assert people.answer({"item_id": question["id"], "type": "option", "options": ["green"]}).status == 400
    assert people.answer({"item_id": question["id"], "type": "option", "options": ["red"]}).status == 200
    assert people.answer({"item_id": question["id"], "type": "option", "options": ["red"]}).status == 409
    assert people.delivered(question["id"])["state"] == "answered"
    people.becomes(session, "idle")
    assert "Answer from boss to the question 'Which?':\\nred" in said(people, task, session), (
        "the answer didn't reach the agent"
    )
    assert people.inbox(task, "report"), "no report"
    assert people.task(task)["merge_title"] == "Add file b"

    project.push("c.txt", "c\n")
    assert people.merge(task).status == 202
    merged = people.merged(task)
    newest = project.log("%H|%s|%an|%ae")[0].split("|")
    assert newest == [merged["merge_commit"], "Add file b", "Test Boss", "boss@example.com"]
    assert project.log() == ["Add file b", "elsewhere", "first"]
    assert any("Bring the default branch" in a.text for a in api.asked), "the agent was not asked to merge"
    assert git(project.work, "rev-parse", "main") == merged["merge_commit"]
    assert (project.work / "b.txt").exists() and (project.work / "c.txt").exists(), "the checkout isn't fast-forwarded"
    assert merged["branch"] not in git(project.work, "branch", "-a")


def test_a_question_of_the_cli_s_own_tool_is_answered_by_people(people: People) -> None:
    project = people.project()
    task = project.task("Choose")
    choice = {
        "question": "Which colour?",
        "header": "Colour",
        "multiSelect": False,
        "options": [{"label": "red", "description": "warm"}, {"label": "blue", "description": "cold"}],
    }
    session = people.work(task, "\n".join([tool("AskUserQuestion", questions=[choice]), "I wait for people."]))
    [result] = people.events(task, "agent.tool_result")
    assert "People have been asked" in str(result["payload"]), "the CLI has no such tool"
    [question] = people.inbox(task, "question")
    assert question["blocking"] and question["payload"]["question"] == "Which colour?", question
    assert question["payload"]["options"] == ["red: warm", "blue: cold"]
    assert people.answer({"item_id": question["id"], "type": "option", "options": ["blue: cold"]}).status == 200
    people.delivered(question["id"])
    people.idle(session)
    assert "blue: cold" in said(people, task, session)
