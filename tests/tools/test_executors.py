"""Executors against a whole deployment: each call sent once or not at all, whatever becomes of connections and processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from tests.support.client import until
from tests.support.deployment import Api, Deployment
from tests.tools.executor import ADD, ANY, CALL, Executor, Sse, Ws, bound, register, result_of, results, text

KINDS = pytest.mark.parametrize("via", [Sse, Ws])


@KINDS
def test_a_call_is_answered_through_any_process(it: Deployment, via: Any) -> None:
    executor = Executor.register(it.apis[0])
    with executor.connect(it.apis[1], via) as connection:
        session = bound(it.apis[0], executor)
        cursor = it.apis[0].say(session, CALL)["cursor"]
        call = connection.next("call")
        assert call["tool"] == "add"
        assert call["arguments"] == {"a": 1, "b": 2}
        assert call["scope"].keys() == {"tenant_id", "session_id", "call_id", "inspection_token", "brain_url"}
        assert (call["scope"]["session_id"], call["scope"]["call_id"]) == (session, call["call_id"])
        look = it.apis[1].call("GET", f"/sessions/{session}", token=call["scope"]["inspection_token"])
        assert look.status == 200
        assert executor.post(it.apis[0], call["connection"], call["call_id"], progress={"pct": 50}).status == 200
        executor.answer(it.apis[0], call, text("3"))
        assert result_of(it.apis[0], session, cursor) == text("3")
        progress = [e["data"]["progress"] for e in it.apis[0].events(session) if e["type"] == "tool.progress"]
        assert progress == [{"pct": 50}]


def test_a_call_is_answered_over_the_websocket_itself(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api, Ws) as connection:
        assert isinstance(connection, Ws)
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        at = {"connection": call["connection"], "call_id": call["call_id"]}
        connection.send({**at, "progress": 1})
        connection.send(json.dumps({**at, "result": text("3")}).encode())
        assert result_of(api, session, cursor) == text("3")
        for body, code in [
            ({**at, "result": text("4")}, "conflict"), ({**at}, "invalid_request"),
            ({**at, "progress": 1, "result": text("5")}, "invalid_request"),
            ("nonsense", "invalid_request"), ({"connection": "old", "call_id": call["call_id"], "result": text("6")}, "conflict"),
        ]:  # fmt: skip
            connection.send(body)
            error = connection.next("error")
            assert error["code"] == code, (body, error)
        assert [e for e in api.turn(session, "/say still here") if e["type"] == "turn.completed"]


@KINDS
def test_a_connection_that_is_cut_after_dispatch_gives_an_unknown_outcome_and_no_second_call(api: Api, via: Any) -> None:
    executor = Executor.register(api)
    with executor.connect(api, via) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        connection.next("call")
        connection.cut()
    with executor.connect(api, via) as second:
        result = result_of(api, session, cursor)
        assert result["unknown_outcome"] is True
        assert result["is_error"] is True
        api.occurs(session, "turn.completed", cursor)
        cursor = api.say(session, CALL)["cursor"]
        call = second.next("call")  # the new one: the old one isn't sent again
        executor.answer(api, call, text("3"))
        assert result_of(api, session, cursor) == text("3")
    assert len([e for e in api.events(session) if e["type"] == "tool.call"]) == 2


def test_a_call_without_a_connection_is_a_definite_error(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api):
        session = bound(api, executor)
    until("it is gone", lambda: api.call("POST", "/sessions", {
        "harness": "script", "config": {"model": "m", "tools": [], "bindings": [{"alias": "calc", "executor": executor.id}]},
    }).status == 409)  # fmt: skip
    [result] = results(api.turn(session, CALL))
    assert result["is_error"]
    assert "unknown_outcome" not in result


def test_calls_of_a_killed_api_process_end_soon_with_unknown_outcomes(it: Deployment) -> None:
    mine = it.apis[1]
    executor = Executor.register(mine)
    with executor.connect(mine) as connection:
        session = bound(it.apis[0], executor)
        cursor = it.apis[0].say(session, CALL)["cursor"]
        call = connection.next("call")
        started = time.monotonic()
        kill_whole(mine)
        assert it.apis[0].occurs(session, "tool.result", cursor)["data"]["result"]["unknown_outcome"]
        assert time.monotonic() - started < 25
        assert executor.post(it.apis[0], call["connection"], call["call_id"], result=text("late")).status == 409
        assert connection.ended()
    mine.start()


def kill_whole(api: Api) -> None:
    """The master and its server process, in one go."""
    os.killpg(api.pid, signal.SIGKILL)
    api.end(signal.SIGKILL)


@KINDS
def test_a_new_connection_replaces_the_old_one_which_is_told_and_ends(it: Deployment, via: Any) -> None:
    executor = Executor.register(it.apis[0])
    with executor.connect(it.apis[0], via) as first:
        session = bound(it.apis[0], executor)
        cursor = it.apis[0].say(session, CALL)["cursor"]
        call = first.next("call")
        with executor.connect(it.apis[1], via) as second:
            assert first.next() == {"type": "replaced", "connection": first.id}
            assert first.ended()
            assert result_of(it.apis[0], session, cursor)["unknown_outcome"]
            stale = executor.post(it.apis[0], first.id, call["call_id"], result=text("3"))
            assert stale.status == 409
            it.apis[0].occurs(session, "turn.completed", cursor)
            cursor = it.apis[0].say(session, CALL)["cursor"]
            executor.answer(it.apis[0], second.next("call"), text("3"))
            assert result_of(it.apis[0], session, cursor) == text("3")


@KINDS
def test_a_closed_executor_ends_its_calls_and_connection_and_takes_no_other(it: Deployment, via: Any) -> None:
    api = it.apis[0]
    executor = Executor.register(api)
    with executor.connect(it.apis[1], via) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        assert [executor.close(api).status for _ in range(2)] == [200, 200]
        assert connection.next() == {"type": "closed", "connection": connection.id}
        assert connection.ended()
        assert result_of(api, session, cursor)["unknown_outcome"]
        assert executor.post(api, connection.id, call["call_id"], result=text("late")).status == 409
    with pytest.raises((AssertionError, InvalidStatus), match="409"):
        executor.connect(api, via)
    api.occurs(session, "turn.completed", cursor)
    [result] = results(api.turn(session, CALL))
    assert result["is_error"]
    assert "unknown_outcome" not in result


@KINDS
def test_a_session_goes_on_with_another_executor_that_has_the_same_tools(api: Api, via: Any) -> None:
    first = Executor.register(api, ADD, ANY)
    with first.connect(api, via):
        session = bound(api, first, ADD, ANY)
    for tools, binding, status in [
        ([ADD], "calc", 409), ([ADD, {**ANY, "description": "other"}], "calc", 409), ([ADD, ANY], "other", 409),
    ]:  # fmt: skip
        assert register(api, *tools, binding=binding, session=session).status == status
    assert register(api, ADD, ANY, session="0" * 32).status == 404
    second = Executor.register(api, ANY, ADD, session=session)  # another order is the same
    with second.connect(api, via) as connection:
        cursor = api.say(session, CALL)["cursor"]
        second.answer(api, connection.next("call"), text("3"))
        assert result_of(api, session, cursor) == text("3")


def test_a_session_can_be_made_before_its_executor_is(api: Api) -> None:
    session = api.session(bindings=[{"alias": "calc", "runtime": [ADD]}])
    assert "executor" in results(api.turn(session, CALL))[0]["content"][0]["text"]
    executor = Executor.register(api, session=session)
    with executor.connect(api) as connection:
        cursor = api.say(session, CALL)["cursor"]
        executor.answer(api, connection.next("call"), text("3"))
        assert result_of(api, session, cursor) == text("3")


def test_replies_that_nobody_asked_for_are_refused(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        mine = (call["connection"], call["call_id"])
        for bad in [
            {},
            {"progress": 1, "result": text("3")},
            {"result": {"content": "x"}},
            {"result": {}},
            {"result": 5},
            {"progress": 1, "x": 2},
        ]:
            assert executor.post(api, *mine, **bad).status == 400, bad
        assert executor.post(api, "0" * 32, call["call_id"], result=text("3")).status == 409
        assert executor.post(api, connection.id, "0" * 32, result=text("3")).status == 409
        executor.answer(api, call, text("3"))
        assert executor.post(api, *mine, result=text("4")).status == 409
        assert executor.post(api, *mine, progress=1).status == 409
        assert result_of(api, session, cursor) == text("3")


@KINDS
def test_an_interrupt_reaches_the_executor(api: Api, via: Any) -> None:
    executor = Executor.register(api)
    with executor.connect(api, via) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        assert api.interrupt(session) == "interrupting"
        assert connection.next("cancel")["call_id"] == call["call_id"]
        assert executor.post(api, call["connection"], call["call_id"], result=text("late")).status == 409
        api.occurs(session, "turn.interrupted", cursor)
        assert [r["unknown_outcome"] for r in results(api.events(session, cursor))] == [True]


@KINDS
@pytest.mark.parametrize(
    "result",
    [
        {"content": []},
        {"content": [{"type": "text", "text": ""}], "is_error": True},
        {"content": [{"type": "text", "text": "\u0000\u2028\U0001f600 \ufffe\r\n"}]},
        {"content": [{"type": "image", "data": "AAEC/w==", "mime_type": "image/png"}]},
        {"content": [], "structured_content": {"": [None, 1.5, -0.0, 2**53, {"a": "b" * 1000}]}},
        {"content": [], "structured_content": None},
        {"content": [{"type": "text", "text": "x"}], "unknown_outcome": True},
    ],
)
def test_results_arrive_as_they_are(api: Api, via: Any, result: dict[str, Any]) -> None:
    executor = Executor.register(api)
    with executor.connect(api, via) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        executor.answer(api, connection.next("call"), result)
        assert result_of(api, session, cursor) == result


def test_what_is_too_deep_or_too_large_is_refused_and_the_call_goes_on(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        mine = (call["connection"], call["call_id"])
        deep: Any = 1
        for _ in range(200):
            deep = [deep]
        assert executor.post(api, *mine, result={"content": [], "structured_content": deep}).status == 400
        assert executor.post(api, *mine, progress=deep).status == 400
        assert executor.post(api, *mine, result=text("x" * (2 << 20))).status == 413
        executor.answer(api, call, text("3"))
        assert result_of(api, session, cursor) == text("3")


@KINDS
def test_a_large_result_is_kept_beside_the_log_and_large_arguments_arrive_whole(api: Api, via: Any) -> None:
    executor = Executor.register(api, ANY)
    with executor.connect(api, via) as connection:
        session = bound(api, executor, ANY)
        large = "y" * 700_000
        cursor = api.say(session, f"/tool calc_any {json.dumps({'a': large})}")["cursor"]
        call = connection.next("call")
        assert call["arguments"] == {"a": large}
        executor.answer(api, call, text("x" * 600_000))
        said = result_of(api, session, cursor)
        assert "600" in said["content"][0]["text"]
        assert "blob" in said["content"][0]["text"]
        assert len(json.dumps(said)) < 1000


def test_a_flood_of_progress_is_bounded(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api, Ws) as connection:
        assert isinstance(connection, Ws)
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        at = {"connection": call["connection"], "call_id": call["call_id"]}
        connection.send({**at, "progress": "x" * 200_000})
        for n in range(1500):
            connection.send({**at, "progress": n})
        connection.send({**at, "result": text("3")})
        assert result_of(api, session, cursor) == text("3")
        told = [e for e in api.events(session, cursor) if e["type"] == "tool.progress"]
        assert 0 < len(told) <= 1000
        assert all(len(json.dumps(e)) < 100_000 for e in told)


def test_arguments_that_do_not_fit_reach_nobody(api: Api) -> None:
    tools = [
        ADD,
        {"name": "remote", "description": "", "input_schema": {"$ref": f"{api.info['url']}/schema"}},
        {"name": "wrong", "description": "", "input_schema": {"type": "nope"}},
        {"name": "slow", "description": "", "input_schema": {"properties": {"a": {"pattern": "^(?=(a+)+$)(a|a)*b\\1?$"}}}},
    ]
    executor = Executor.register(api, *tools)
    with executor.connect(api) as connection:
        session = bound(api, executor, *tools)
        for call in ['add {"a": "x", "b": 1}', 'add {"a": 1}', "add {}", 'add {"a": 1, "b": 2, "c": 3}', "remote {}", "wrong {}",
                     f'slow {{"a": "{"a" * 60}c"}}']:  # fmt: skip
            [result] = results(api.turn(session, f"/tool calc_{call}"))
            assert result["is_error"], call
            assert "unknown_outcome" not in result
            assert "input_schema" in result["content"][0]["text"]
        assert connection.commands.empty()


def test_a_redis_that_restarts_ends_connections_which_come_again(it: Deployment, api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api) as sse:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        sse.next("call")
        it.redis.stop()
        assert sse.ended(seconds=30)
        it.redis.start()
    connection = until("it can connect again", lambda: connected(executor, api), seconds=30)
    with connection:
        until("the session goes on", lambda: api.status(session) in ("idle", "interrupted"), seconds=60)
        # what the agent did in the last second before may be lost with Redis; what is known of it is whole
        events = api.events(session, cursor)
        calls = [e["data"]["id"] for e in events if e["type"] == "tool.call"]
        assert [e["data"]["call_id"] for e in events if e["type"] == "tool.result"] == calls
        assert all(result["unknown_outcome"] for result in results(events))
        if api.status(session) == "interrupted":
            assert api.call("POST", f"/sessions/{session}/resume").status == 200
        cursor = api.say(session, CALL)["cursor"]
        executor.answer(api, connection.next("call"), text("3"))
        assert result_of(api, session, cursor) == text("3")


def connected(executor: Executor, api: Api) -> Any:
    with contextlib.suppress(AssertionError, OSError):
        return executor.connect(api)
    return None
