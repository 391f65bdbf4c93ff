"""A vendor's limit parks a turn: people are told, and it goes on by itself."""

from __future__ import annotations

import time

from tests.support.client import until
from tests.support.people import People

SECONDS = 12


def test_a_parked_turn_resumes_once_after_everything_was_restarted(people: People) -> None:
    it = people.it
    task = people.project().task()
    ran = it.data / "ran.txt"
    began = time.time()
    session = people.agent(task, f"/ratelimit {SECONDS}\n/run echo once >> {ran}")
    until("the limit is in the inbox", lambda: people.inbox(task, "rate_limited"))
    (item,) = people.inbox(task)
    assert (item["priority"], item["blocking"], item["payload"]["vendor"]) == ("fyi", False, "script")
    assert item["payload"]["rate_limit"]["reset_at"] and f"{SECONDS} s" in item["payload"]["error"]
    assert people.state(session) == "queued"
    assert people.call("POST", f"/api/sessions/{session}/messages", {"text": "x"}).status == 409
    for each in (*it.apis, *it.workers):
        assert each.end() == 0
    assert not ran.exists() and time.time() - began < SECONDS, "everything is down before the limit ends"
    it.redis.stop()
    it.redis.start()
    for each in (*it.apis, *it.workers):
        each.start()
    people.idle(session, seconds=60)
    assert time.time() - began >= SECONDS and ran.read_text() == "once\n"
    assert [e["payload"]["outcome"] for e in people.events(task, "turn.ended")] == ["rate_limited", "completed"]
    assert [i["kind"] for i in people.inbox(task)] == ["report", "rate_limited"]
    assert people.answer({"item_id": item["id"], "type": "other", "text": "x"}).status == 400


def test_a_parked_turn_can_be_withdrawn(people: People) -> None:
    task = people.project().task()
    session = people.agent(task, "/ratelimit 3600\n/say never")
    until("the limit is in the inbox", lambda: people.inbox(task, "rate_limited"))
    assert people.call("POST", f"/api/sessions/{session}/interrupt").status == 202
    people.idle(session)
    people.say(session, "/say on we go")
    assert [i["payload"]["text"] for i in people.inbox(task, "report")] == ["on we go"]
