"""Tools of the catalog against a whole deployment: what endpoints get, what agents see of their answers, and where no request goes."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.outgoing.client import Outgoing
from app.services import catalog_file
from tests.support.client import until
from tests.support.deployment import TENANT, Api, Deployment, Worker, deployment
from tests.support.leaks import leaks
from tests.tools.executor import ADD, results, text
from tests.tools.loopback import Peer, Server, serving
from tests.tools.mcp_peer import mcp_server

DEPLOYMENT_KEY = "deployment-key-0123456789"
CREDENTIAL = "credential-of-a-session-9876543210"
ARGUMENTS = {"a": 1, "b": 2}
CALL = f"/tool calc_add {json.dumps(ARGUMENTS)}"
GIGABYTE = 1 << 30


class Endpoint:
    """Answers by path. `bodies` are what came, `written` the bytes that got away of the answer that is too large."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.written = 0
        self.inner = ""
        self.asked, self.gone = threading.Event(), threading.Event()

    def handle(self, peer: Peer) -> None:
        body = json.loads(peer.seen.body or b"null")
        self.bodies.append(body)
        match peer.seen.path:
            case "/good":
                arguments = body["call"]["arguments"]
                peer.answer(200, json.dumps(text(f"{arguments['a'] + arguments['b']}")).encode())
            case "/echo":
                said = (
                    f"{peer.seen.headers['authorization']} {json.dumps(body['credential'])} {body['scope']['inspection_token']}"
                )
                peer.answer(200, json.dumps(text(said)).encode())
            case "/redirect":
                peer.answer(307, Location=f"{self.inner}/secret")
            case "/see-other":
                peer.answer(303, Location=f"{self.inner}/secret")
            case "/huge":
                self._huge(peer)
            case "/nonsense":
                peer.answer(200, b"<html>")
            case "/no-result":
                peer.answer(200, b'{"content": "x"}')
            case "/drop":
                peer.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
            case path if path.startswith("/status/"):
                peer.answer(int(path.rpartition("/")[2]))
            case "/mute":
                self.asked.set()
                if peer.gone(60):
                    self.gone.set()

    def _huge(self, peer: Peer) -> None:
        peer.raw(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % GIGABYTE)
        piece = b"x" * (1 << 16)
        while self.written < GIGABYTE:
            peer.raw(piece)
            self.written += len(piece)


endpoint = Endpoint()
PATHS = {
    "redirect": "/redirect", "seeother": "/see-other", "huge": "/huge", "nonsense": "/nonsense", "noresult": "/no-result", "drop": "/drop",
    "s400": "/status/400", "s500": "/status/500", "echo": "/echo",
}  # fmt: skip


@pytest.fixture(scope="module")
def inner() -> Iterator[Server]:
    """What nobody may reach."""
    with serving(lambda peer: peer.answer(200, json.dumps(text("reached")).encode())) as server:
        endpoint.inner = server.url
        yield server


@pytest.fixture(scope="module")
def outer() -> Iterator[Server]:
    """What BYRE_OUTGOING_ALLOW names."""
    with serving(endpoint.handle) as server:
        yield server


@pytest.fixture(scope="module")
def it(inner: Server, outer: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    def http(name: str, url: str, **more: Any) -> dict[str, Any]:
        return {"name": name, "kind": "http", "endpoint": url, "tools": [ADD], **more}

    secret = {"Authorization": {"env": "DEPLOYMENT_KEY", "prefix": "Bearer "}, "X-Plain": "yes"}
    with mcp_server() as mcp, mcp_server() as doomed:
        providers = [
            http("calc", f"{outer.url}/good", headers=secret),
            *(http(name, outer.url + path, headers=secret) for name, path in PATHS.items()),
            http("mute", f"{outer.url}/mute", seconds=1),
            http("waits", f"{outer.url}/mute"),
            http("named", f"https://localhost:{inner.port}/"),
            http("literal", f"https://127.0.0.1:{inner.port}/"),
            http("six", f"https://[::ffff:127.0.0.1]:{inner.port}/"),
            http("theirs", f"{outer.url}/good", tenants=["elsewhere"]),
            http("mine", f"{outer.url}/good", tenants=[TENANT]),
            {"name": "peer", "kind": "mcp", "endpoint": mcp, "headers": {"X-Deployment": {"env": "DEPLOYMENT_KEY"}}},
            {"name": "doomed", "kind": "mcp", "endpoint": doomed},
            {"name": "inside", "kind": "mcp", "endpoint": f"https://localhost:{inner.port}/mcp"},
        ]
        file = tmp_path_factory.mktemp("catalog") / "catalog.json"
        file.write_text(json.dumps({"providers": providers}))
        allowed = ",".join(url.partition("://")[2].partition("/")[0] for url in (outer.url, mcp, doomed))
        env = {
            "BYRE_CATALOG": str(file),
            "BYRE_OUTGOING_ALLOW": allowed,
            "DEPLOYMENT_KEY": DEPLOYMENT_KEY,
            "BYRE_WORKER_SLOTS": "32",
            "BYRE_WARM_SECONDS": "2",
            "BYRE_LOG_LEVEL": "debug",
        }
        with deployment(env=env) as made:
            yield made


@pytest.fixture
def api(it: Deployment) -> Api:
    return it.apis[0]


def session(api: Api, provider: str, credential: Any = None, **binding: Any) -> str:
    body: dict[str, Any] = {
        "harness": "script",
        "config": {"model": "m", "tools": [], "bindings": [{"alias": provider, "provider": provider, **binding}]},
    }
    if credential is not None:
        body["credentials"] = [{"binding": provider, "value": credential}]
    reply = api.call("POST", "/sessions", body)
    assert reply.status == 201, reply
    return str(reply.json["id"])


def called(api: Api, one: str, tool: str, arguments: Any = None) -> dict[str, Any]:
    [result] = results(api.turn(one, f"/tool {tool} {json.dumps(ARGUMENTS if arguments is None else arguments)}"))
    return result


def said(result: dict[str, Any]) -> str:
    return " ".join(part.get("text", "") for part in result["content"])


def test_an_endpoint_gets_the_call_its_scope_the_parameters_and_the_credential(api: Api, outer: Server) -> None:
    one = session(api, "calc", {"token": CREDENTIAL}, parameters={"unit": "m"})
    assert called(api, one, "calc_add") == text("3")
    body, seen = endpoint.bodies[-1], outer.seen[-1]
    assert body.keys() == {"call", "scope", "parameters", "credential"}
    assert (body["call"]["name"], body["call"]["arguments"]) == ("add", ARGUMENTS)
    assert (body["parameters"], body["credential"]) == ({"unit": "m"}, {"token": CREDENTIAL})
    scope = body["scope"]
    assert (scope["tenant_id"], scope["session_id"], scope["call_id"]) == (TENANT, one, body["call"]["id"])
    assert (seen.method, seen.headers["authorization"], seen.headers["x-plain"]) == ("POST", f"Bearer {DEPLOYMENT_KEY}", "yes")
    assert [e["data"]["id"] for e in api.events(one) if e["type"] == "tool.call"] == [body["call"]["id"]]

    token = scope["inspection_token"]
    assert api.call("GET", f"/sessions/{one}", token=token).status == 200
    assert api.call("GET", f"/sessions/{one}/events", token=token).status == 200
    for method, path in [
        ("POST", f"/sessions/{one}/close"), ("POST", f"/sessions/{one}/events"), ("GET", "/sessions"), ("GET", "/catalog"),
        ("GET", f"/sessions/{session(api, 'calc')}"),
    ]:  # fmt: skip
        assert api.call(method, path, {} if method == "POST" else None, token=token).status in (401, 403), (method, path)


def test_the_catalog_shows_descriptors_of_the_caller_s_tenant_and_nothing_else(api: Api) -> None:
    reply = api.call("GET", "/catalog")
    tools = {tool["name"]: tool for tool in reply.json["tools"]}
    assert tools["calc_add"] == {**ADD, "name": "calc_add"}
    assert "mine_add" in tools and "theirs_add" not in tools
    assert {"peer_add", "peer_who", "doomed_die"} <= tools.keys()
    assert not [name for name in tools if name.startswith("inside")], "it can't be asked, and the others can"
    for word in ("http", DEPLOYMENT_KEY, "X-Plain", "endpoint"):
        assert word.encode() not in reply.body
    for body, status in [
        ({"bindings": [{"alias": "t", "provider": "theirs"}]}, 400),
        ({"tools": ["theirs_add"]}, 400),
        ({"bindings": [{"alias": "t", "provider": "calc", "operations": ["sub"]}]}, 400),
        ({"bindings": [{"alias": "calc", "provider": "calc"}], "tools": ["calc_add"]}, 409),
    ]:
        config = {"model": "m", "tools": [], **body}
        assert api.call("POST", "/sessions", {"harness": "script", "config": config}).status == status, body
    one = api.session(tools=["calc_add", "peer_add"])
    assert called(api, one, "calc_add") == text("3")
    assert said(called(api, one, "peer_add")) == "3"


REFUSED = [
    ("redirect", False, "redirect"), ("seeother", True, "303"), ("nonsense", True, "JSON"), ("noresult", True, "content"),
    ("drop", True, "unknown"), ("s400", False, "400"), ("s500", True, "500"), ("named", False, "public"), ("literal", False, "public"),
    ("six", False, "public"),
]  # fmt: skip


@pytest.mark.parametrize(("provider", "unknown", "why"), REFUSED)
def test_what_goes_wrong_is_a_result_and_nothing_inside_is_reached(
    api: Api, inner: Server, provider: str, unknown: bool, why: str
) -> None:
    one = session(api, provider)
    before = len(endpoint.bodies)
    events = api.turn(one, f"/tool {provider}_add {json.dumps(ARGUMENTS)}\n/say on")
    [result] = results(events)
    assert result["is_error"] and result.get("unknown_outcome", False) is unknown, result
    assert why in said(result)
    assert len(endpoint.bodies) - before == (0 if provider in ("named", "literal", "six") else 1), "never twice"
    assert inner.connections == 0
    for word in ("127.0.0.1", "localhost", DEPLOYMENT_KEY):
        assert word not in json.dumps(result)
    assert events[-1]["type"] == "turn.completed"


def test_an_answer_of_a_gigabyte_is_cut(api: Api) -> None:
    one = session(api, "huge")
    began = time.monotonic()
    result = called(api, one, "huge_add")
    assert result["unknown_outcome"] and "too large" in said(result)
    assert endpoint.written < GIGABYTE // 8
    assert time.monotonic() - began < 20


def test_an_answer_that_never_comes_is_cut_at_the_provider_s_limit(api: Api) -> None:
    one = session(api, "mute")
    began = time.monotonic()
    result = called(api, one, "mute_add")
    assert result["unknown_outcome"] and "in time" in said(result)
    assert 1 <= time.monotonic() - began < 15


def test_an_interrupt_cuts_a_call_that_waits(api: Api) -> None:
    endpoint.asked.clear()
    endpoint.gone.clear()
    one = session(api, "waits")
    cursor = str(api.say(one, f"/tool waits_add {json.dumps(ARGUMENTS)}")["cursor"])
    assert endpoint.asked.wait(30)
    assert api.interrupt(one) == "interrupting"
    assert endpoint.gone.wait(10), "the endpoint sees that nobody waits any more"
    api.occurs(one, "turn.interrupted", cursor)
    assert [result["unknown_outcome"] for result in results(api.events(one, cursor))] == [True]


def test_arguments_that_do_not_fit_reach_nobody(api: Api) -> None:
    one, before = session(api, "calc"), len(endpoint.bodies)
    assert "input_schema" in said(called(api, one, "calc_add", {"a": "x", "b": 1}))
    assert len(endpoint.bodies) == before


def test_a_server_of_mcp_is_called_with_progress_and_fixed_arguments(api: Api) -> None:
    one = session(api, "peer", CREDENTIAL, operations=["add", "who"], parameters={"b": 40})
    doc = api.call("GET", f"/sessions/{one}").json
    assert [tool["name"] for tool in doc["descriptors"]] == ["peer_add", "peer_who"]
    assert "b" not in doc["descriptors"][0]["input_schema"]["properties"]
    events = api.turn(one, '/tool peer_add {"a": 2}')
    [result] = results(events)
    assert said(result) == "42" and result["structured_content"] == {"result": 42}
    progress = [event["data"]["progress"] for event in events if event["type"] == "tool.progress"]
    assert progress == [{"progress": 1, "total": 2, "message": "half"}]
    # it was given both secrets, and neither is shown
    assert said(called(api, one, "peer_who", {})) == "Bearer [secret] [secret]"


def test_a_server_of_mcp_that_fails_or_goes(api: Api) -> None:
    failed = called(api, session(api, "peer"), "peer_fail", {})
    assert failed["is_error"] and "unknown_outcome" not in failed and "fail" in said(failed)
    one = session(api, "doomed")
    assert called(api, one, "doomed_die", {})["unknown_outcome"], "it was sent, and there was no answer"
    gone = called(api, one, "doomed_die", {})
    assert gone["is_error"] and "unknown_outcome" not in gone and "not made" in said(gone)


def test_secrets_are_with_their_endpoint_and_nowhere_else(it: Deployment, api: Api, outer: Server) -> None:
    one = session(api, "echo", {"token": CREDENTIAL, "more": [CREDENTIAL + "-2"]})
    shown = said(called(api, one, "echo_add"))
    assert shown == 'Bearer [secret] {"token": "[secret]", "more": ["[secret]"]} [secret]', "the endpoint has said all of it"
    tokens = [body["scope"]["inspection_token"] for body in endpoint.bodies if body]
    api.turn(one, "/run env\n/recall")
    assert api.call("POST", f"/sessions/{one}/flush").status == 200
    doc = api.call("GET", f"/sessions/{one}")
    assert doc.json["credential_bindings"] == ["echo"]
    assert CREDENTIAL.encode() not in doc.body
    secrets = [CREDENTIAL, DEPLOYMENT_KEY, it.env["BYRE_SECRET_KEY"], it.token, *tokens]
    with it.redis.client() as redis:
        assert leaks(secrets, [it.data], redis) == []
        assert leaks([f"/sessions/{one}", one], [it.data / "store"], redis), "the search finds what is there"
    assert [seen.headers["authorization"] for seen in outer.seen if "authorization" in seen.headers]
    env = until("its command has run", lambda: [e for e in api.events(one) if e["type"] == "tool.result"][1:])[0]
    names = {line.partition("=")[0] for line in env["data"]["result"]["content"][0]["text"].splitlines() if "=" in line}
    assert names <= {"PATH", "HOME", "LANG", "BYRE_BRIDGE", "BYRE_MARKER", "PWD", "SHLVL", "_", "OLDPWD"}, names


def test_the_catalog_of_the_documentation_is_a_good_one(tmp_path: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "brain.md").read_text()
    found = re.search(r"^    (\{\"providers\".*?^    \]\})$", page, re.M | re.S)
    assert found
    secret = tmp_path / "tickets"
    secret.write_text("of the tickets")
    raw = found[1].replace("/run/secrets/tickets", str(secret)).encode()
    entries = catalog_file.parse(raw, {"WEATHER_KEY": "k"}, Outgoing().check)
    assert [(entry.name, entry.kind) for entry in entries] == [("weather", "http"), ("tickets", "mcp")]
    assert entries[0].headers == {"Authorization": "Bearer k", "X-Team": "shop"}


def test_a_catalog_that_is_wrong_stops_the_process_with_one_line(it: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "catalog.json"
    file.write_text(
        json.dumps({"providers": [{"name": "x", "kind": "http", "endpoint": "http://tool.example/", "tools": [ADD]}]})
    )
    process = Worker({**it.env, "BYRE_CATALOG": str(file)}, tmp_path / "worker.log")
    process.launch()
    assert process.ended() != 0
    assert "providers[0].endpoint" in process.text() and "https" in process.text()
