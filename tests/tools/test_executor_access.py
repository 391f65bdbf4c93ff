"""Who may be an executor, and what becomes of its tokens; handshakes that are not right."""

from __future__ import annotations

from typing import Any

import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from app.services.tokens import Tokens
from app.store.open import open_store
from tests.support.deployment import TENANT, Api, Deployment
from tests.support.leaks import leaks
from tests.tools.executor import ANY, CALL, Executor, Sse, Ws, bound, register, text

KINDS = pytest.mark.parametrize("via", [Sse, Ws])


def tokens(it: Deployment) -> Tokens:
    return Tokens(open_store(it.store), it.env["BYRE_SECRET_KEY"])


def test_executors_of_others_are_not_there(it: Deployment, api: Api) -> None:
    mine, other = Executor.register(api), Executor.register(api)
    _, foreign = tokens(it).create("elsewhere", "management", login="somebody")
    body = {"harness": "script", "config": {"model": "m", "tools": [], "bindings": [{"alias": "calc", "executor": mine.id}]}}
    with mine.connect(api):
        assert api.call("POST", "/sessions", body, token=foreign).status == 400
        session = bound(api, mine)
        assert register(api, session=session, token=foreign).status == 404
        stolen = Executor(mine.id, other.token)
        assert stolen.post(api, "c", "d", result=text("x")).status == 403
        assert stolen.close(api).status == 403
        assert Executor(mine.id, foreign).close(api).status == 403
        assert Executor(mine.id, api.info["management_token"]).close(api).status == 403
        with pytest.raises(AssertionError, match="403"):
            stolen.connect(api)
        with pytest.raises(InvalidStatus, match="403"):
            stolen.connect(api, Ws)
        assert api.call("GET", f"/sessions/{session}", token=mine.token).status == 403
    assert (
        api.call(
            "POST", "/sessions", {**body, "config": {**body["config"], "bindings": [{"alias": "calc", "executor": "0" * 32}]}}
        ).status
        == 400
    )


def test_an_executor_must_be_connected_when_a_session_binds_it(api: Api) -> None:
    executor = Executor.register(api)
    body = {
        "harness": "script",
        "config": {"model": "m", "tools": [], "bindings": [{"alias": "calc", "executor": executor.id}]},
    }
    assert api.call("POST", "/sessions", body).status == 409
    with executor.connect(api):
        for change, status in [
            ({"alias": "other"}, 409), ({"runtime": [ANY]}, 409), ({"parameters": {}}, 400), ({"operations": ["add"]}, 400),
            ({"provider": "x"}, 400), ({"alias": "x y"}, 409), ({}, 201),
        ]:  # fmt: skip
            given = {"alias": "calc", "executor": executor.id, **change}
            reply = api.call("POST", "/sessions", {**body, "config": {**body["config"], "bindings": [given]}})
            assert reply.status == status, (change, reply)


@KINDS
def test_an_expired_credential_ends_its_connection_and_opens_none(it: Deployment, api: Api, via: Any) -> None:
    made = Executor.register(api)
    short = Executor(made.id, tokens(it).executor_credential(TENANT, made.id, seconds=3))
    with short.connect(api, via) as connection:
        assert connection.ended(seconds=20)
        if isinstance(connection, Ws):
            connection._thread.join(5)
            assert connection.code == 1008
    assert short.close(api).status == 401
    assert short.post(api, "c", "d", result=text("x")).status == 401
    with pytest.raises((AssertionError, InvalidStatus), match="401"):
        short.connect(api, via)


@pytest.mark.parametrize(
    ("protocols", "headers", "status"),
    [
        (["brain-rpc", "brain-auth.TOKEN"], {"Origin": "https://evil.example"}, 403),
        (["brain-rpc"], {}, 401),
        (["brain-auth.TOKEN"], {}, 401),
        ([], {}, 401),
        ([], {"Authorization": "Bearer TOKEN"}, 401),
        (["brain-rpc", "brain-auth.nonsense"], {}, 401),
    ],
)
def test_a_websocket_handshake_that_is_not_right_is_refused(
    api: Api, protocols: list[Any], headers: dict[str, str], status: int
) -> None:
    executor = Executor.register(api)
    url = f"{api.info['url'].replace('http', 'ws', 1)}/executors/{executor.id}/rpc"
    with pytest.raises(InvalidStatus) as caught:
        connect(
            url,
            subprotocols=[p.replace("TOKEN", executor.token) for p in protocols] or None,
            additional_headers={k: v.replace("TOKEN", executor.token) for k, v in headers.items()},
            proxy=None,
        )
    assert caught.value.response.status_code == status
    plain = api.call("GET", f"/executors/{executor.id}/rpc", token=executor.token)
    assert plain.status == 400


def test_the_token_is_not_repeated_in_the_handshake(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api, Ws) as connection:
        assert isinstance(connection, Ws)
        assert connection.socket.subprotocol == "brain-rpc"
        assert executor.token not in str(connection.socket.response)


def test_a_message_over_the_limit_ends_the_websocket(api: Api) -> None:
    executor = Executor.register(api)
    with executor.connect(api, Ws) as connection:
        assert isinstance(connection, Ws)
        connection.send("x" * (3 << 20))
        assert connection.ended()
        connection._thread.join(5)
        assert connection.code == 1009
    with executor.connect(api, Ws):
        pass


@KINDS
def test_its_tokens_are_kept_nowhere(it: Deployment, api: Api, via: Any) -> None:
    executor = Executor.register(api)
    with executor.connect(api, via) as connection:
        session = bound(api, executor)
        cursor = api.say(session, CALL)["cursor"]
        call = connection.next("call")
        executor.answer(api, call, text("3"))
        api.occurs(session, "turn.completed", cursor)
        secrets = [executor.token, call["scope"]["inspection_token"], it.token, it.env["BYRE_SECRET_KEY"]]
        with it.redis.client() as redis:
            assert leaks(secrets, [it.data], redis) == []
