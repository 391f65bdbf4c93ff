"""What only shows with sockets: large bodies, broken framing, clients that go, many streams, a process that stops (F3, F4, F7)."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import threading
import time
from collections.abc import Callable

import pytest

from tests.http.fakes import SESSION
from tests.http.server import Server, read_all, read_until

EVENTS = f"/sessions/{SESSION}/events"
START = b"retry: 2000\n\n"
HEAD = b"Host: x\r\nAuthorization: Bearer management\r\n"
MIB = 1 << 20


def talk(server: Server, request: bytes, timeout: float = 15) -> bytes:
    """All that comes back for `request` until the server ends the connection."""
    with server.connect(timeout) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        return read_all(connection)


def shaped(answer: bytes, status: int) -> bool:
    """Whether `answer` is one error with this status in the contract's shape."""
    head, _, body = answer.partition(b"\r\n\r\n")
    document = json.loads(body)
    named = f"x-request-id: {document['request_id']}".encode() in head.lower()
    return head.startswith(b"HTTP/1.1 %d " % status) and set(document["error"]) == {"code", "message"} and named


# -- bodies


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB, 12 * MIB])
@pytest.mark.parametrize("close", [False, True])
def test_a_client_that_sends_all_before_it_reads_sees_the_413(server: Server, size: int, close: bool) -> None:
    headers = {"Connection": "close"} if close else {}
    status, seen, body = server.call("POST", EVENTS, {"type": "user.message", "text": "x" * size}, headers=headers)
    assert (status, json.loads(body)["error"]["code"]) == (413, "body_limit")
    assert seen["x-request-id"]


def test_so_does_one_that_is_refused_for_another_reason(server: Server) -> None:
    assert server.call("POST", EVENTS, raw=b"x" * 3 * MIB, token=None)[0] == 401
    assert server.call("POST", "/nowhere", raw=b"x" * 3 * MIB)[0] == 404
    assert server.call("POST", f"/sessions/{SESSION}/close", raw=b"x" * 3 * MIB)[0] == 413


def test_refused_bodies_cost_no_memory(server: Server) -> None:
    server.call("POST", EVENTS, raw=b"x" * 3 * MIB)
    before = server.control()["peak"]
    for _ in range(3):
        assert server.call("POST", EVENTS, raw=b"x" * 14 * MIB, headers={"Content-Type": "application/json"})[0] == 413
    assert server.control()["peak"] - before < 6 * MIB


def test_a_refused_body_is_not_waited_for(server: Server) -> None:
    with server.connect() as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\n%sContent-Length: 900000000\r\n\r\n" % (EVENTS.encode(), HEAD))
        assert read_until(connection, b'"body_limit"').startswith(b"HTTP/1.1 413 ")


def test_a_body_without_end_is_not_read_for_ever(server: Server) -> None:
    sent = 0
    with server.connect() as connection:
        connection.sendall(b"POST %s HTTP/1.1\r\n%sContent-Length: 900000000\r\n\r\n" % (EVENTS.encode(), HEAD))
        with contextlib.suppress(ConnectionError):
            while sent < 200 * MIB:
                connection.sendall(b"x" * MIB)
                sent += MIB
    assert 16 * MIB <= sent < 40 * MIB


def test_the_connection_goes_on_after_a_413(server: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    with contextlib.closing(connection):
        connection.request("POST", EVENTS, b"x" * 2 * MIB, {"Authorization": "Bearer management"})
        used = connection.sock
        answer = connection.getresponse()
        assert (answer.status, bool(answer.read())) == (413, True)
        connection.request("GET", "/healthz")
        assert connection.getresponse().status == 200
        assert connection.sock is used


def chunked(*chunks: bytes) -> bytes:
    body = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    return (
        b"POST %s HTTP/1.1\r\n%sContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n" % (EVENTS.encode(), HEAD)
        + body
    )


def test_chunked_bodies_are_taken_and_counted(server: Server) -> None:
    assert talk(server, chunked(b'{"type":"user.mes', b'sage","text":"x"}')).startswith(b"HTTP/1.1 202 ")
    assert shaped(talk(server, chunked(*[b"x" * 65536] * 40)), 413)


def test_a_bomb_of_small_chunks_is_bounded(server: Server) -> None:
    before = server.control()["peak"]
    assert shaped(talk(server, chunked(*[b"x" * 16] * 200_000), timeout=60), 413)
    assert server.control()["peak"] - before < 16 * MIB


@pytest.mark.parametrize(
    "body",
    [b"zz\r\n\r\n", b"5\r\nabc", b"-1\r\n\r\n", b"5;" + b"x" * 9000 + b"\r\nabcde\r\n0\r\n\r\n", b"3\r\nabcde\r\n0\r\n\r\n"],
)
def test_broken_chunks_are_refused(server: Server, body: bytes) -> None:
    head = chunked().partition(b"\r\n\r\n")[0]
    answer = talk(server, head + b"\r\n\r\n" + body)
    assert not answer or shaped(answer, 400)
    assert server.call("GET", "/healthz")[0] == 200


# -- F7: framing and headers


SMUGGLED = [
    b"Content-Length: 5\r\nContent-Length: 6\r\n",
    b"Content-Length: 5\r\nContent-Length: 5\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity, chunked, chunked\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b" Content-Length: 5\r\n",
    b"X: a\r\n Content-Length: 5\r\n",
    b"X: a\nContent-Length: 5\r\n",
    b"X: a\x00b\r\n",
]


@pytest.mark.parametrize("headers", SMUGGLED)
def test_ambiguous_framing_is_refused_and_nothing_behind_it_is_served(server: Server, headers: bytes) -> None:
    second = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = talk(server, b"POST %s HTTP/1.1\r\n%s%s\r\n0\r\n\r\n%s" % (EVENTS.encode(), HEAD, headers, second))
    assert shaped(answer, 501 if b"xchunked" in headers else 400)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"ok"' not in answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET / HTTP/9.9\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"a" * 9000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: a\r\n" * 100 + b"\r\n", 431),
    ],
)
def test_what_is_no_request_gets_an_error_of_the_usual_shape(server: Server, request_: bytes, status: int) -> None:
    assert shaped(talk(server, request_), status)


def test_forwarded_headers_are_passed_over(server: Server) -> None:
    spoofed = {"X-Forwarded-For": "1.2.3.4", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil", "Forwarded": "for=1.2.3.4",
               "X-Forwarded-Ssl": "on", "Script-Name": "/x", "X-HTTP-Method-Override": "DELETE"}  # fmt: skip
    status, headers, body = server.call("GET", f"/sessions/{SESSION}", headers=spoofed)
    assert status == 200
    assert b"evil" not in body + repr(headers).encode()


def test_a_doubled_authorization_is_refused(server: Server) -> None:
    answer = talk(server, b"GET /catalog HTTP/1.1\r\n%sAuthorization: Bearer user\r\nConnection: close\r\n\r\n" % HEAD)
    assert shaped(answer, 401)


def test_a_header_with_underscores_does_not_pass_for_one_with_dashes(server: Server) -> None:
    answer = talk(server, b"GET /healthz HTTP/1.1\r\nHost: x\r\nX_Request_ID: mine\r\nConnection: close\r\n\r\n")
    assert b"mine" not in answer


# -- streams


def test_headers_and_first_bytes_leave_at_once_and_events_follow(server: Server) -> None:
    with server.stream(EVENTS, headers="Last-Event-ID: \r\n") as connection:
        head = read_until(connection, START)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        server.control(do="push", data="event: x\ndata: {}\n\n")
        assert b"event: x\ndata: {}\n\n" in read_until(connection, b"{}\n\n")


def test_a_stream_that_is_over_ends_the_response_and_not_the_connection(new_server: Callable[..., Server]) -> None:
    server = new_server()
    with server.stream(EVENTS) as connection:
        read_until(connection, START)
        server.control(do="end")
        assert read_until(connection, b"0\r\n\r\n").endswith(b"0\r\n\r\n")
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b'"ok"' in read_until(connection, b'"ok"')
        server.until(lambda state: state["closed"] == [1])


def test_heartbeats_revoked_tokens_and_clients_that_went(new_server: Callable[..., Server]) -> None:
    server = new_server(TEST_HEARTBEAT="0.3")
    stays, goes, revoked = server.stream(EVENTS), server.stream(EVENTS), server.stream(EVENTS, token="user")
    for connection in (stays, goes, revoked):
        assert b": hb\n\n" in read_until(connection, b": hb\n\n")
    server.until(lambda state: state["open"] == 3)
    goes.close()
    server.until(lambda state: state["open"] == 2, timeout=5)
    server.control(do="revoke", token="user")
    assert read_until(revoked, b"0\r\n\r\n").endswith(b"0\r\n\r\n")
    server.until(lambda state: state["open"] == 1, timeout=5)
    assert read_until(stays, b": hb\n\n")
    stays.close()
    server.until(lambda state: state["open"] == 0 and state["closed"] == [1, 1, 1], timeout=5)
    assert not server.failures()


def test_as_many_streams_as_allowed_leave_requests_quick(new_server: Callable[..., Server]) -> None:
    server = new_server(TEST_MAX_STREAMS="200", TEST_MAX_STREAMS_PER_TOKEN="150")
    with contextlib.ExitStack() as stack:
        for token, count in (("management", 150), ("user", 50)):
            for _ in range(count):
                connection = stack.enter_context(server.stream(EVENTS, token=token))
                assert b" 200 " in read_until(connection, START)[:20]
            status, headers, _ = server.call("GET", EVENTS, token=token, headers={"Accept": "text/event-stream"})
            assert (status, headers["retry-after"]) == (429, "1")
        began = time.monotonic()
        for _ in range(50):
            assert server.call("GET", f"/sessions/{SESSION}")[0] == 200
        assert (time.monotonic() - began) / 50 < 0.1
    server.until(lambda state: state["streams"] == 200)


def test_a_reader_that_is_slow_holds_up_nobody(new_server: Callable[..., Server]) -> None:
    server = new_server(TEST_SLOW_SECONDS="1")
    slow, quick = server.stream(EVENTS), server.stream(EVENTS)
    for connection in (slow, quick):
        read_until(connection, START)
    got = 0
    flood = threading.Thread(target=lambda: [server.control(do="push", data="data: x\n\n", times=60_000) for _ in range(40)])
    flood.start()
    while got < 40 * 60_000 * 9:
        piece = quick.recv(1 << 20)
        assert piece
        got += len(piece)
    flood.join(20)
    server.until(lambda state: state["open"] == 1, timeout=10)
    assert not server.failures()
    slow.close()
    quick.close()


def test_500_followers_cost_under_40_kib_each(new_server: Callable[..., Server]) -> None:
    server = new_server()
    with contextlib.ExitStack() as stack:

        def follow(count: int) -> int:
            for _ in range(count):
                read_until(stack.enter_context(server.stream(EVENTS)), START)
            server.control(do="push", data=": warm\n\n")
            return int(server.control()["rss"])

        warm = follow(20)
        each = (follow(500) - warm) / 500
    assert each < 40 * 1024, f"{each / 1024:.1f} KiB"


def test_a_busy_connection_does_not_starve_the_others(new_server: Callable[..., Server]) -> None:
    server = new_server()
    count = 2000
    with server.connect() as busy:
        busy.sendall(b"GET /sessions/%s HTTP/1.1\r\n%s\r\n" % (SESSION.encode(), HEAD) * count)
        assert busy.recv(100)
        assert server.control()["calls"] < count, "another connection waited until the busy one had nothing left"


# -- stopping


def test_stops_with_live_streams_in_under_3_seconds(new_server: Callable[..., Server]) -> None:
    server = new_server()
    idle = server.connect()
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    read_until(idle, b'"ok"}')
    streams = [server.stream(EVENTS) for _ in range(50)]
    for connection in streams:
        read_until(connection, START)
    overload = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    assert server.stop() < 3 * overload
    for connection in streams:
        assert b"retry: 1000\n\n" in (rest := read_all(connection))
        assert rest.endswith(b"0\r\n\r\n")
    assert read_all(idle) == b""
    assert server.process.returncode == 0
    assert not server.failures()


def test_a_request_under_way_is_answered_before_the_stop(new_server: Callable[..., Server]) -> None:
    server = new_server()
    with server.connect() as connection:
        order = b'{"do":"sleep","seconds":1}'
        connection.sendall(b"POST /_control HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(order), order))
        server.control()  # a later request was answered: that one has begun
        assert server.stop() < 10
        assert read_all(connection).startswith(b"HTTP/1.1 200 ")
