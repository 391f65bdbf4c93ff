"""Questions of agents and the answers of people, over HTTP."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import until
from tests.support.people import People, Project, ask

COLOURS = "Pick:\n- ( ) red\n- (*) blue\n"
PARTS = "Which?\n- [ ] one\n- [x] two\n- [x] three\n"


@pytest.fixture(scope="module")
def project(people: People) -> Project:
    return people.project()


def test_a_blocking_question_and_its_answer(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, ask("Which colour?", COLOURS, blocking=True, why_blocked="I can't choose"))
    (item,) = people.inbox(task, "question")
    assert item["priority"] == "blocked" and item["blocking"] and item["thread_id"] == item["agent_session_id"] == session
    assert item["payload"] == {
        "question": "Which colour?", "context": COLOURS, "why_blocked": "I can't choose", "options": ["red", "blue"],
        "multiple": False, "recommended": ["blue"], "attachments": [],
    }  # fmt: skip
    refused = (
        {"type": "option", "options": ["green"]}, {"type": "option", "options": ["red", "blue"]}, {"type": "option"},
        {"type": "option", "options": []}, {"type": "other"}, {"type": "other", "text": "  "}, {"type": "dismiss", "options": ["red"]},
        {"type": "other", "text": "x", "attachments": [{"kind": "file"}]},
        {"type": "other", "text": "x", "attachments": [{"kind": "file", "path": "../x"}]},
        {"type": "other", "text": "x", "attachments": [{"kind": "url", "url": "javascript:x"}]},
    )  # fmt: skip
    for body in refused:
        assert people.answer({"item_id": item["id"], **body}).status == 400, body
    answered = people.answer({"item_id": item["id"], "type": "option", "options": ["red"]})
    assert answered.status == 200
    (shown,) = answered.json
    assert (shown["state"], shown["resolved_by"]) == ("answered", "boss")
    assert people.answer({"item_id": item["id"], "type": "option", "options": ["red"]}).status == 409
    told = people.delivered(item["id"])
    assert told["responses"][0]["options"] == ["red"] and told["responses"][0]["user"] == "boss"
    people.idle(session)
    message = people.events(task, "user.message")[-1]
    assert "red" in message["payload"]["text"]
    assert message["payload"]["answers"] == [{"item_id": item["id"], "login": "boss", "display_name": "boss"}]
    (event,) = people.events(task, "inbox.answered")
    assert event["seq"] < message["seq"] and event["actor"] == "boss"


def test_what_no_question_can_be_is_told_to_the_agent(people: People, project: Project) -> None:
    task = project.task()
    people.work(task, ask("Both?", "- ( ) a\n- [ ] b\n") + "\n" + ask("Twice?", "- ( ) a\n- ( ) a\n") + "\n" + ask(" "))
    assert not people.inbox(task, "question")
    results = [e["payload"]["result"] for e in people.events(task, "agent.tool_result")]
    assert [r.get("is_error") for r in results] == [True, True, True]


def test_two_questions_are_answered_at_different_times(people: People, project: Project) -> None:
    """A blocking and a non-blocking one in one turn: what is answered waits for the blocking one."""
    task = project.task()
    session = people.work(task, ask("Parts?", PARTS) + "\n" + ask("Colour?", COLOURS, blocking=True, why_blocked="x"))
    items = people.inbox(task, "question")
    assert [(i["priority"], i["blocking"]) for i in items] == [("blocked", True), ("fyi", False)], "highest priority first"
    colour, parts = (i["id"] for i in items)
    assert items[1]["payload"]["multiple"] and items[1]["payload"]["recommended"] == ["two", "three"]
    body = {"item_id": parts, "type": "option", "options": ["one", "three"], "text": "and a note"}
    assert people.answer(body).status == 200
    assert people.answer({"item_id": colour, "type": "other", "text": "neither"}).status == 200
    people.delivered(parts)
    people.idle(session)
    said = [e["payload"] for e in people.events(task, "user.message")]
    assert len(said) == 2, "one message brings both"
    assert [a["item_id"] for a in said[1]["answers"]] == [parts, colour]
    assert all(text in said[1]["text"] for text in ("one", "three", "and a note", "neither"))


def test_nothing_is_delivered_while_a_blocking_question_is_open(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, ask("One?") + "\n" + ask("Two?", blocking=True, why_blocked="x"))
    two, one = (i["id"] for i in people.inbox(task, "question"))
    assert people.answer({"item_id": one, "type": "other", "text": "first"}).status == 200
    assert people.state(session) == "idle" and not people.item(one)["responses"][0].get("delivered_at")
    assert people.answer({"item_id": two, "type": "dismiss"}).json[0]["state"] == "dismissed"
    people.delivered(one)
    assert "delivered_at" not in people.item(two)["responses"][0]


def test_all_or_nothing(people: People, project: Project) -> None:
    task = project.task()
    people.work(task, ask("One?") + "\n" + ask("Two?", COLOURS))
    one, two = (i["id"] for i in people.inbox(task, "question"))
    good = {"item_id": one, "type": "other", "text": "yes"}
    assert people.answer(good, {"item_id": two, "type": "option", "options": ["green"]}).status == 400
    assert people.answer(good, {"item_id": "f" * 32, "type": "dismiss"}).status == 404
    assert people.answer(good, good).status == 400
    assert people.item(one)["state"] == "open"
    assert people.answer(good, {"item_id": two, "type": "option", "options": ["red"]}).status == 200
    assert people.delivered(one)["state"] == people.delivered(two)["state"] == "answered"
    (message,) = [e for e in people.events(task, "user.message") if e["payload"].get("answers")]
    assert len(message["payload"]["answers"]) == 2


@pytest.mark.parametrize("together", [1, 3])
def test_twenty_people_answer_at_once(people: People, project: Project, together: int) -> None:
    task = project.task()
    people.work(task, "\n".join(ask(f"Question {n}?") for n in range(together)))
    items = [i["id"] for i in people.inbox(task, "question")]
    tokens = [people.person(f"many-{n}") for n in range(20)]

    def respond(n: int) -> int:
        order = items if n % 2 else items[::-1]
        given = [{"item_id": i, "type": "other", "text": f"from {n}"} for i in order]
        for _ in range(5):
            answer = people.answer(*given, token=tokens[n])
            if answer.status != 503:  # a busy machine says so, and to try again
                break
        assert answer.status in (200, 409), answer.body
        return answer.status

    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(respond, range(20)))
    assert sorted(statuses) == [200, *[409] * 19]
    winner = f"many-{statuses.index(200)}"
    for item in items:
        found = people.delivered(item)
        assert [r["user"] for r in found["responses"]] == [winner]
    assert [p["login"] for p in people.call("GET", f"/api/tasks/{task}/co-authors").json] == [winner]


def test_what_is_settled_takes_no_answer(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, ask("Superseded?", blocking=True, why_blocked="x") + "\n" + ask("Dismissed?"))
    blocking, other = (i["id"] for i in people.inbox(task, "question"))
    assert people.answer({"item_id": other, "type": "dismiss"}).status == 200
    people.say(session, "never mind")
    for item, state in ((blocking, "superseded"), (other, "dismissed")):
        assert people.item(item)["state"] == state
        assert people.answer({"item_id": item, "type": "other", "text": "late"}).status == 409
    stranger = people.person("stranger", tenant="elsewhere")
    assert people.answer({"item_id": other, "type": "dismiss"}, token=stranger).status == 404
    assert people.call("GET", f"/api/inbox/{other}", token=stranger).status == 404
    assert people.call("GET", "/api/inbox", token=stranger).json == []
    assert people.call("GET", "/api/inbox/nothing-like-it").status == 404


def test_an_interrupt_supersedes_a_question_and_reports_follow_each_other(people: People, project: Project) -> None:
    task = project.task()
    session = people.agent(task, ask("Now?", blocking=True, why_blocked="x") + "\n/sleep 60")
    until("the question is there", lambda: people.inbox(task, "question"))
    assert people.call("POST", f"/api/sessions/{session}/interrupt").status == 202
    people.idle(session)
    (item,) = people.inbox(task, "question", state="superseded")
    assert item["resolved_by"] == "byre" and not people.inbox(task)
    assert people.call("POST", f"/api/sessions/{session}/interrupt").status == 409
    people.say(session, "/say one")
    people.say(session, "/say two")
    assert [i["payload"]["text"] for i in people.inbox(task)] == ["two"]
    assert [i["payload"]["text"] for i in people.inbox(task, state="superseded") if i["kind"] == "report"] == ["one"]
    (report,) = people.inbox(task)
    assert report["priority"] == "review"
    assert people.answer({"item_id": report["id"], "type": "option", "options": ["x"]}).status == 400
    assert people.answer({"item_id": report["id"], "type": "other", "text": "/say three"}).status == 200
    people.delivered(report["id"])
    until("the reply is answered", lambda: [i["payload"]["text"] for i in people.inbox(task, "report")] == ["three"])


def test_title_and_progress(people: People, project: Project) -> None:
    task = project.task()
    people.work(
        task,
        f'/title A better title\n/title \n/tool report_progress {{"text": "half way"}}\n/write x.txt x\n{ask("Seen?")}',
    )
    assert people.task(task)["merge_title"] == "A better title"
    assert [e["payload"]["text"] for e in people.events(task, "agent.progress")] == ["half way"]
    assert not [i for i in people.inbox(task) if i["kind"] not in ("question", "report")]
    shots = people.call("GET", f"/api/tasks/{task}/snapshots").json
    assert [s["n"] for s in shots] == list(range(1, len(shots) + 1))
    assert {s["trigger"] for s in shots} <= {"tool_call", "ask_human"}


def test_filters_and_order(people: People, project: Project) -> None:
    other = people.project()
    mine, foreign = project.task(), other.task()
    people.work(foreign, ask("Foreign?"))
    people.work(mine, ask("Late?") + "\n" + ask("Later?", blocking=True, why_blocked="x"))
    ids = [i["id"] for i in people.call("GET", f"/api/inbox?project_id={other.id}").json]
    assert {i["task_id"] for i in people.call("GET", f"/api/inbox?project_id={other.id}").json} == {foreign} and len(ids) == 2
    everything = people.call("GET", "/api/inbox").json
    rank = ("blocked", "gate", "review", "fyi")
    order = [(rank.index(i["priority"]), i["created_at"]) for i in everything]
    assert order == sorted(order) and {i["state"] for i in everything} == {"open"}
    assert people.call("GET", "/api/inbox?state=nonsense").status == 400
    assert all(i["state"] == "answered" for i in people.call("GET", "/api/inbox?state=answered").json)
