"""Agent sessions of a task over HTTP: what they are seen to do, models, interrupts, compaction, errors."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.client import until
from tests.support.people import People, Project, ask

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")


@pytest.fixture(scope="module")
def project(people: People) -> Project:
    return people.project()


def test_a_task_has_one_turn_at_a_time(people: People, project: Project) -> None:
    task = project.task()
    session = people.agent(task, "/sleep 60")
    assert people.state(session) in ("queued", "running")
    busy = (
        ("POST", f"/api/tasks/{task}/sessions", {"prompt": "x"}),
        ("POST", f"/api/sessions/{session}/messages", {"text": "x"}),
        ("POST", f"/api/sessions/{session}/compact", None),
        ("POST", f"/api/tasks/{task}/merge", None),
        ("POST", f"/api/tasks/{task}/merge-in", None),
        ("POST", f"/api/tasks/{task}/discard", None),
    )
    for method, path, body in busy:
        assert people.call(method, path, body).status == 409, path
    people.becomes(session, "running")
    assert people.call("POST", f"/api/sessions/{session}/interrupt").status == 202
    people.idle(session)
    assert not people.inbox(task), "who interrupts knows it"
    (ended,) = people.events(task, "turn.ended")
    assert (ended["payload"]["outcome"], ended["payload"]["reason"]) == ("interrupted", "user")
    states = [e["payload"]["state"] for e in people.events(task, "session.state")]
    assert states == ["queued", "running", "idle"]


def test_twenty_messages_at_once_start_one_turn(people: People, project: Project) -> None:
    task = project.task()
    first = people.work(task, "/say hello")
    second = people.work(task, "/say there")
    sessions = [first, second]

    def send(n: int) -> int:
        body = {"text": f"/sleep 2\n/say {n}"}
        return people.call("POST", f"/api/sessions/{sessions[n % 2]}/messages", body).status

    with ThreadPoolExecutor(20) as pool:
        statuses = list(pool.map(send, range(20)))
    assert statuses.count(202) == 1 and set(statuses) == {202, 409}
    for session in sessions:
        people.idle(session)
    assert len(people.events(task, "turn.started")) == 3


def test_a_session_is_idle_only_with_its_items_and_snapshots(people: People, project: Project) -> None:
    task = project.task()
    session = people.agent(task, "/write seen.txt x\n/say done")
    seen: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            if people.state(session) == "idle":
                seen.append("report" if people.inbox(task, "report") else "none")
                seen.append("snapshot" if people.call("GET", f"/api/tasks/{task}/snapshots").json else "none")
                return

    thread = threading.Thread(target=watch)
    thread.start()
    thread.join(60)
    stop.set()
    assert seen == ["report", "snapshot"]


def test_failures_are_items_and_the_session_goes_on(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, "/fail it broke")
    (item,) = people.inbox(task)
    assert (item["kind"], item["priority"], item["blocking"]) == ("session_error", "gate", False)
    assert "it broke" in item["payload"]["error"]
    for kind in ({"type": "other", "text": "x"}, {"type": "option", "options": ["x"]}):
        assert people.answer({"item_id": item["id"], **kind}).status == 400
    assert people.answer({"item_id": item["id"], "type": "dismiss"}).status == 200
    people.say(session, "/crash")
    (item,) = people.inbox(task, "session_error")
    assert "exit status 3" in item["payload"]["error"]
    people.say(session, "/say fine")
    assert [i["kind"] for i in people.inbox(task)] == ["session_error", "report"]


def test_models_are_switched_before_the_message(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, "/say a", model="one")
    people.say(session, "/say b", model="two")
    people.say(session, "/say c")
    assert [e["payload"].get("model") for e in people.events(task, "turn.started")] == ["one", "two", "two"]
    assert people.sessions(task)[0]["model"] == "two"
    assert people.call("POST", f"/api/sessions/{session}/messages", {"text": "x", "model": "a b"}).status == 400


def test_images_reach_the_agent(people: People, project: Project) -> None:
    with people.api._connection(30) as connection:
        headers = {"Authorization": f"Bearer {people.boss}", "Content-Type": "image/png"}
        connection.request("POST", "/api/blobs", PNG, headers)
        answer = connection.getresponse()
        assert answer.status == 201
        blob = json.loads(answer.read())["id"]
    task = project.task()
    people.work(task, "", images=[blob])
    texts = [e["payload"]["text"] for e in people.events(task, "agent.text")]
    assert f"You sent an image: image/png, {len(PNG)} bytes" in texts
    refused = people.call("POST", f"/api/tasks/{task}/sessions", {"prompt": "x", "images": ["0" * 64]})
    assert refused.status == 400
    assert people.call("POST", f"/api/tasks/{task}/sessions", {"prompt": " "}).status == 400


def test_compaction(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, "/write a.md x\n" + ask("Still open?"), model="m-1")
    (question,) = people.inbox(task, "question")
    assert people.call("POST", f"/api/sessions/{session}/compact").status == 202
    until("the session is completed", lambda: people.state(session) == "completed")
    until("there is a successor", lambda: len(people.sessions(task)) == 2)
    old, new = people.sessions(task)
    assert (old["state"], new["model"], new["vendor"]) == ("completed", "m-1", old["vendor"])
    people.idle(new["id"])
    handed = [e for e in people.events(task, "user.message") if e["agent_session_id"] == new["id"]]
    assert len(handed) == 1 and handed[0]["actor"] == "byre"
    for part in ("Goal", "Decisions", "State", "Dead ends", "Open questions", "Files"):
        assert f"## {part}" in handed[0]["payload"]["text"]
    (completed,) = people.events(task, "session.completed")
    assert completed["payload"]["successor"] == new["id"]
    (report,) = people.inbox(task, "report", state="open")[-1:]
    assert report["agent_session_id"] == new["id"] and report["thread_id"] == session
    for path in ("messages", "compact"):
        assert people.call("POST", f"/api/sessions/{session}/{path}", {"text": "x"}).status == 409
    answer = {"item_id": question["id"], "type": "other", "text": "to whoever goes on"}
    assert people.answer(answer).status == 200
    people.delivered(question["id"])
    people.idle(new["id"])
    told = people.events(task, "user.message")[-1]
    assert told["agent_session_id"] == new["id"] and "to whoever goes on" in told["payload"]["text"]


def test_who_takes_part(people: People, project: Project) -> None:
    task = project.task()
    ann = people.person("ann", "Ann", "ann@example.com")
    people.person("bob")
    session = people.work(task, ask("Who?"), token=people.boss)
    people.say(session, "/say hi", token=ann)
    (question,) = people.inbox(task, "question")
    bob = people.person("bob")
    people.answer({"item_id": question["id"], "type": "other", "text": "me"}, token=bob)
    people.delivered(question["id"])
    found = people.call("GET", f"/api/tasks/{task}/co-authors").json
    assert [(p["login"], p["git_name"], p["git_email"]) for p in found] == [("ann", "Ann", "ann@example.com"), ("bob", "", "")]
    assert [p["login"] for p in people.call("GET", f"/api/tasks/{task}/co-authors", token=ann).json] == ["boss", "bob"]


def test_discarding_supersedes_and_closes(people: People, project: Project) -> None:
    task = project.task()
    session = people.work(task, ask("Why?", blocking=True, why_blocked="x"))
    assert people.call("POST", f"/api/tasks/{task}/discard").status == 200
    assert not people.inbox(task) and {i["state"] for i in people.inbox(task, state="superseded")} == {"superseded"}
    for path, body in (("messages", {"text": "x"}), ("compact", None), ("interrupt", None)):
        assert people.call("POST", f"/api/sessions/{session}/{path}", body).status == 409, path
    for path in ("merge", "merge-in", "discard"):
        assert people.call("POST", f"/api/tasks/{task}/{path}").status == 409, path
