"""Two API processes and two workers on one Redis and one store: whichever a client meets, it is one service."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.support.client import ENDED
from tests.support.deployment import Deployment


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def test_a_message_sent_through_one_is_streamed_by_the_other(it: Deployment) -> None:
    here, there = it.apis
    session = here.session()
    seen: list[dict[str, Any]] = []

    def follow() -> None:
        for event in there.follow(session):
            seen.append(event)
            if event["type"] == "turn.completed":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    message = here.say(session, "/say hello\n/stream 5 10 streamed text\n/write notes.txt abc\n/run cat notes.txt")
    thread.join(60)
    assert not thread.is_alive()
    assert kinds([e for e in seen if e["type"] != "assistant.delta"]) == [
        "user.message", "turn.started", "assistant.message", "assistant.message",
        "tool.call", "tool.result", "tool.call", "tool.result", "turn.completed",
    ]  # fmt: skip
    assert "".join(e["data"]["text"] for e in seen if e["type"] == "assistant.delta") == "streamed text"
    assert [e for e in seen if "cursor" in e] == here.events(session) == there.events(session)
    assert {e.get("input_id") for e in seen[1:]} == {message["id"]}
    assert len({e["data"]["turn"] for e in seen[1:]}) == 1
    first, middle = seen[0]["cursor"], here.events(session)[4]["cursor"]
    assert there.events(session, middle) == here.events(session)[5:]
    rest = [event["id"] for event in itertools.islice(there.follow(session, first), 8)]
    assert rest == [event["id"] for event in here.events(session)[1:]]


def test_no_turn_runs_twice(it: Deployment) -> None:
    """Many sessions with many messages through both; each message leaves a line in one file outside."""
    mark = it.data / "ran.txt"
    sessions = [it.apis[n % 2].session() for n in range(10)]

    def talk(number: int) -> None:
        for n in range(5):
            api = it.apis[(number + n) % 2]
            api.say(sessions[number], f"/run echo {number}-{n} >> {mark}")

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(talk, range(10)))
    for session in sessions:
        it.apis[0].becomes(session, "idle", seconds=60)
    ran = Counter(mark.read_text().split())
    assert ran == {f"{a}-{b}": 1 for a in range(10) for b in range(5)}
    for session in sessions:
        found = kinds(it.apis[1].events(session))
        assert found.count("turn.started") == found.count("turn.completed") == found.count("user.message") == 5


def test_the_same_key_twenty_times_at_once_is_one_event(it: Deployment) -> None:
    session = it.apis[0].session()
    body = {"type": "user.message", "text": f"/run echo once >> {it.data / session}", "key": "the-key"}
    with ThreadPoolExecutor(20) as pool:
        replies = list(pool.map(lambda n: it.apis[n % 2].call("POST", f"/sessions/{session}/events", body), range(20)))
    assert {reply.status for reply in replies} == {202}
    assert len({reply.body for reply in replies}) == 1, "one answer for all"
    it.apis[0].becomes(session, "idle")
    assert kinds(it.apis[0].events(session)).count("user.message") == 1
    assert (it.data / session).read_text() == "once\n"
    again = it.apis[1].call("POST", f"/sessions/{session}/events", body)
    assert again.body == replies[0].body, "also long after"
    other = it.apis[1].call("POST", f"/sessions/{session}/events", {**body, "text": "/say other"})
    assert other.status == 409


def test_messages_queue_behind_a_running_turn_in_order(it: Deployment) -> None:
    session = it.apis[0].session()
    it.apis[0].say(session, "/sleep 1\n/say 0")
    sent = [it.apis[n % 2].say(session, f"/say {n}")["id"] for n in range(1, 6)]
    it.apis[0].becomes(session, "idle")
    events = it.apis[1].events(session)
    assert [e["data"]["text"] for e in events if e["type"] == "assistant.message"] == list("012345")
    assert [e["data"]["inputs"] for e in events if e["type"] == "turn.started"][1:] == [[each] for each in sent]


def test_an_interrupt_ends_the_turn_and_keeps_what_waits(it: Deployment) -> None:
    session = it.apis[0].session()
    assert it.apis[0].interrupt(session) == "idle"
    it.apis[0].say(session, "/sleep 100")
    it.apis[0].occurs(session, "turn.started")
    queued = it.apis[1].say(session, "/say queued")["id"]
    assert it.apis[1].interrupt(session) in ("interrupting", "idle")
    it.apis[0].occurs(session, "turn.completed")
    events = it.apis[0].events(session)
    (cut,) = [e for e in events if e["type"] == "turn.interrupted"]
    assert cut["data"]["reason"] == "user"
    assert [e["data"]["inputs"] for e in events if e["type"] == "turn.started"][1] == [queued]
    assert it.apis[1].becomes(session, "idle")


def test_an_interrupting_message_goes_first(it: Deployment) -> None:
    session = it.apis[0].session()
    it.apis[0].say(session, "/sleep 100")
    it.apis[0].occurs(session, "turn.started")
    it.apis[0].say(session, "/say second")
    it.apis[1].say(session, "/say first", delivery="interrupt")
    it.apis[0].becomes(session, "idle")
    events = it.apis[0].events(session)
    assert [e["data"]["text"] for e in events if e["type"] == "assistant.message"] == ["first", "second"]
    assert [e["data"]["reason"] for e in events if e["type"] == "turn.interrupted"] == ["user"]


def test_steering_reaches_the_running_turn(it: Deployment) -> None:
    session = it.apis[0].session()
    it.apis[0].say(session, "/say one\n/sleep 2\n/say three")
    it.apis[0].occurs(session, "assistant.message")
    steering = it.apis[1].say(session, "/say two", delivery="steer")
    it.apis[0].becomes(session, "idle")
    events = it.apis[0].events(session)
    assert [e["data"]["text"] for e in events if e["type"] == "assistant.message"] == ["one", "two", "three"]
    assert [e["data"]["inputs"] for e in events if e["type"] == "turn.steered"] == [[steering["id"]]]
    assert kinds(events).count("turn.started") == 1
    unknown = it.apis[0].call(
        "POST", f"/sessions/{session}/events", {"type": "user.message", "text": "x", "delivery": "telepathy"}
    )
    assert unknown.status == 422


def test_steering_while_idle_is_a_message_like_any_other(it: Deployment) -> None:
    session = it.apis[0].session()
    it.apis[0].say(session, "/say hello", delivery="steer")
    it.apis[0].becomes(session, "idle")
    assert "turn.completed" in kinds(it.apis[0].events(session))


def test_a_waiting_message_can_be_withdrawn_and_no_other(it: Deployment) -> None:
    session = it.apis[0].session()
    running = it.apis[0].say(session, "/sleep 100")["id"]
    it.apis[0].occurs(session, "turn.started")
    waiting = it.apis[0].say(session, "/say never")["id"]
    path = f"/sessions/{session}/inputs"
    assert it.apis[1].call("DELETE", f"{path}/{waiting}").json == {"status": "accepted"}
    assert it.apis[1].call("DELETE", f"{path}/{waiting}").status == 409
    assert it.apis[1].call("DELETE", f"{path}/{running}").status == 409
    it.apis[0].interrupt(session)
    it.apis[0].becomes(session, "idle")
    assert "assistant.message" not in kinds(it.apis[0].events(session))


def test_who_has_seen_an_event_never_reads_an_older_status(it: Deployment) -> None:
    """200 turns followed through one API, each status asked at once of the other."""
    here, there = it.apis
    stale: list[str] = []

    def watch(_: int) -> None:
        session = here.session()
        stream = here.follow(session)
        for n in range(25):
            here.say(session, f"/say {n}")
            for event in stream:
                if event["type"] == "turn.completed":
                    break
            now = there.status(session)
            if now != "idle":
                stale.append(now)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(watch, range(8)))
    assert stale == []


def test_restarted_workers_and_apis_know_everything(it: Deployment) -> None:
    session = it.apis[0].session()
    it.apis[0].turn(session, "remember the first\n/write notes.txt kept")
    before = it.apis[0].events(session)
    it.restart()
    assert it.apis[1].events(session) == before
    turn = it.apis[1].turn(session, "/recall\n/run cat notes.txt")
    said = "".join(e["data"]["text"] for e in turn if e["type"] == "assistant.message")
    assert "remember the first" in said
    (result,) = [e["data"]["result"] for e in turn if e["type"] == "tool.result"]
    assert "kept" in result["content"][0]["text"]
    assert set(kinds(turn)) & set(ENDED) == {"turn.completed"}


def test_lists_are_the_same_everywhere(it: Deployment) -> None:
    made = [it.apis[n % 2].session() for n in range(5)]
    pages = [api.call("GET", f"/sessions?limit=3&after={made[0]}").json for api in it.apis]
    assert pages[0] == pages[1]
    assert [s["id"] for s in pages[0]["sessions"]] == made[1:4]
