"""getStatus: what runs, waits, went wrong and is left over, as one tenant may see it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from app.http.schema import Validator
from tests.support.client import until
from tests.support.deployment import Deployment, deployment
from tests.support.people import QUICK, People

Document = dict[str, Any]
ENV = {**QUICK, "BYRE_CAP_GLOBAL": "1", "BYRE_STUCK_AFTER_SECONDS": "3", "BYRE_WARM_SECONDS": "30"}
VALID = Validator().response_validator("getStatus", 200)


@pytest.fixture(scope="module")
def it() -> Iterator[Deployment]:
    with deployment(apis=2, workers=1, env=ENV) as made:
        yield made


@pytest.fixture(scope="module")
def people(it: Deployment) -> People:
    return People(it)


def status(people: People, token: str | None = None) -> Document:
    reply = people.call("GET", "/api/admin/status", token=token)
    assert reply.status == 200, reply
    VALID.validate(reply.json)
    found: Document = reply.json
    return found


def when(people: People, what: str, wanted: Any, seconds: float = 40.0) -> Document:
    """The status as soon as `wanted` holds of it."""

    def look() -> Document | None:
        now = status(people)
        return now if wanted(now) else None

    return until(what, look, seconds=seconds, pause=0.2) or {}


def test_what_runs_and_what_waits_in_the_order_in_which_it_will_start(people: People) -> None:
    project = people.project()
    tasks = [project.task(f"task {n}") for n in range(3)]
    first = people.agent(tasks[0], "/hang")
    people.becomes(first, "running")
    second = people.agent(tasks[1], "/say two")
    third = people.agent(tasks[2], "/say three")
    shown = when(people, "all three are there", lambda s: s["agent_processes"] and len(s["queued_turns"]) == 2)
    assert shown["running_turns"] == [{"session_id": first, "task_id": tasks[0], "vendor": "script"}]
    assert [turn["session_id"] for turn in shown["queued_turns"]] == [second, third]
    assert shown["caps"] == {"global": 1, "per_vendor": {"script": 1}}
    (process,) = shown["agent_processes"]
    assert (process["session_id"], process["state"], shown["live_agents"]) == (first, "running", 1)
    os.kill(process["pid"], 0)
    stuck = when(people, "it is stuck", lambda s: s["agent_processes"][0]["health"] == "stuck")
    assert (stuck["stuck_after_seconds"], stuck["zombies"]) == (3, [])
    assert people.call("POST", f"/api/sessions/{first}/interrupt").status == 202
    for session in (first, second, third):
        people.idle(session)
    done = when(people, "nothing waits", lambda s: not s["running_turns"] and not s["queued_turns"])
    assert {each["session_id"] for each in done["agent_processes"]} <= {first, second, third}
    assert (done["projects"], done["active_tasks"]) == (1, 3)
    assert done["last_event_seq"] > 10
    assert done["db_bytes"] > 1000


def test_lines_that_make_no_sense_and_what_the_vendor_limits(people: People) -> None:
    task = people.project().task()
    session = people.work(task, "/garbage")
    shown = when(people, "they are told", lambda s: s["protocol_errors"]["counts"].get("script", 0) >= 4)["protocol_errors"]
    assert shown["counts"] == {"script": 4}
    assert {each["session_id"] for each in shown["recent"]} == {session}
    assert [each["at"] for each in shown["recent"]] == sorted((each["at"] for each in shown["recent"]), reverse=True)
    longest = max(shown["recent"], key=lambda each: int(each["size"]))
    assert longest["size"] > 300_000
    assert len(longest["raw"].encode()) <= 4096
    other = people.project().task()
    people.agent(other, "/ratelimit 2")
    limits = when(people, "the limit is told", lambda s: s["rate_limits"])["rate_limits"]
    assert limits["script"]["retry_after"] == pytest.approx(2, abs=1)


def test_streams_are_counted_by_tenant_over_all_processes(people: People) -> None:
    stranger = people.person("eve", tenant="rival")
    opened = [api.stream("/api/events", token=people.boss, timeout=60) for api in people.it.apis]
    readers = [threading.Thread(target=next, args=(stream,), daemon=True) for stream in opened]
    for reader in readers:
        reader.start()
    assert when(people, "both are counted", lambda s: s["sse_clients"] == 2)["started_at"]
    theirs = status(people, stranger)
    assert theirs["sse_clients"] == 0
    for reader in readers:
        reader.join(30)
    for stream in opened:
        stream.close()
    when(people, "they are gone", lambda s: s["sse_clients"] == 0)


def test_another_tenant_sees_nothing_of_it(people: People) -> None:
    shown = status(people, people.person("mallory", tenant="rival"))
    empty = ("agent_processes", "zombies", "running_turns", "queued_turns")
    assert [shown[name] for name in empty] == [[]] * 4
    assert shown["protocol_errors"] == {"counts": {}, "recent": []}
    assert shown["rate_limits"] == {}
    assert (shown["projects"], shown["active_tasks"], shown["last_event_seq"], shown["db_bytes"]) == (0, 0, 0, 0)


@pytest.mark.chaos
def test_a_session_whose_worker_died_is_a_zombie_until_it_is_taken_over() -> None:
    env = {**QUICK, "BYRE_LEASE_SECONDS": "25"}
    with deployment(workers=2, env=env) as it:
        people = People(it)
        task = people.project().task()
        session = people.agent(task, "/sleep 600")
        people.becomes(session, "running")
        when(people, "its process is there", lambda s: s["agent_processes"])
        for worker in it.workers:
            worker.end(signal.SIGKILL)
        shown = when(people, "it is a zombie", lambda s: s["zombies"], seconds=60)
        assert [(z["kind"], z["session_id"], z["task_id"]) for z in shown["zombies"]] == [
            ("running_without_process", session, task)
        ]
        it.workers[0].start()
        people.idle(session, seconds=90)
        assert when(people, "it is settled", lambda s: not s["running_turns"])["zombies"] == []
