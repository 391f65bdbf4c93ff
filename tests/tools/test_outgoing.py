"""The guarded client against servers that mean it ill: refused or cut, in time, and never a byte where none should go."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.outgoing.client import Outgoing
from app.outgoing.errors import Lost, NotSent, OutgoingError, Refused
from app.outgoing.push_session import PushSession
from tests.tools.loopback import Certificates, Peer, Seen, serving
from tests.tools.test_outgoing_endless import dripping_body

ROOT = Path(__file__).resolve().parents[2]


def names(*addresses: str) -> Any:
    """A resolver that gives these addresses for every name, and counts how often it was asked."""

    def ask(host: str, port: int, *_: int) -> list[tuple[Any, ...]]:
        asked.append(host)
        return [
            (socket.AF_INET6, 1, 6, "", (a, port, 0, 0)) if ":" in a else (socket.AF_INET, 1, 6, "", (a, port))
            for a in addresses
        ]

    asked: list[str] = []
    ask.asked = asked  # type: ignore[attr-defined]
    return ask


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def test_an_allowed_host_is_spoken_to_over_plain_http() -> None:
    with serving(lambda peer: peer.answer(201, b"hello", X_One="1")) as server:
        out = Outgoing([f"127.0.0.1:{server.port}"])
        answer = out.send("POST", server.url + "/a?b=c", {"X-Mine": "yes"}, b"body")
    assert (answer.status, answer.body, answer.headers["x-one"]) == (201, b"hello", "1")
    seen = server.seen[0]
    assert (seen.method, seen.path, seen.body) == ("POST", "/a?b=c", b"body")
    assert seen.headers == {
        "host": f"127.0.0.1:{server.port}", "user-agent": "byre", "x-mine": "yes", "content-length": "4", "connection": "close",
    }  # fmt: skip


@pytest.mark.parametrize(
    "url",
    [
        "ftp://h/", "file:///etc/passwd", "https:///x", "https://", "//h/", "h", "", "https://u:p@h/", "https://u@h/", "https://h:0/",
        "https://h:99999/", "https://h:x/", "https://h/\r\nX: y", "https://h/ x", "https://h/é", "https://[::1/", "https://h h/",
        "http://h.example/", "https://" + "x" * 3000, "https://a..b/", "javascript:alert(1)",
    ],
)  # fmt: skip
def test_what_is_no_good_address_is_refused(url: str) -> None:
    lookup = names("93.184.216.34")
    with pytest.raises(Refused):
        Outgoing(lookup=lookup).send("GET", url, {})
    assert lookup.asked == []


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["::1"], ["93.184.216.34", "127.0.0.1"], ["10.0.0.1"], ["::ffff:127.0.0.1"], ["169.254.169.254"]],
)
def test_a_name_with_an_address_that_is_not_public_is_refused_and_nothing_is_connected(addresses: list[str]) -> None:
    with serving(lambda peer: peer.answer(200)) as server:
        with pytest.raises(Refused, match="isn't public"):
            Outgoing(lookup=names(*addresses)).send("GET", f"https://tool.example:{server.port}/", {})
        assert server.connections == 0


def test_odd_spellings_of_loopback_are_refused() -> None:
    with serving(lambda peer: peer.answer(200)) as server:
        for host in ["localhost", "127.1", "0x7f.0.0.1", "2130706433", "017700000001", "0", "[::ffff:127.0.0.1]", "[::]"]:
            with pytest.raises((Refused, NotSent)):
                Outgoing().send("GET", f"https://{host}:{server.port}/", {})
        assert server.connections == 0


def test_the_name_is_asked_for_once_and_the_connection_goes_to_what_came_out(certificates: Certificates) -> None:
    with serving(lambda peer: peer.answer(200, b"ok"), certificates.server("tool.example")) as server:
        lookup = names("127.0.0.1")
        out = Outgoing([f"tool.example:{server.port}", str(certificates.authority)], lookup=lookup)
        assert out.send("GET", f"https://tool.example:{server.port}/", {}).body == b"ok"
    assert lookup.asked == ["tool.example"]
    assert server.seen[0].headers["host"] == f"tool.example:{server.port}"


@pytest.mark.parametrize(
    ("host", "days", "trusted", "why"),
    [
        ("tool.example", 2, False, "certificate"),
        ("other.example", 2, True, "certificate"),
        ("tool.example", 0, True, "certificate"),
    ],
)
def test_a_certificate_that_is_not_good_is_the_end(
    certificates: Certificates, host: str, days: int, trusted: bool, why: str
) -> None:
    with serving(lambda peer: peer.answer(200), certificates.server(host, days=days)) as server:
        allow = [f"tool.example:{server.port}", *([str(certificates.authority)] if trusted else [])]
        with pytest.raises(NotSent, match=why) as caught:
            Outgoing(allow, lookup=names("127.0.0.1")).send("GET", f"https://tool.example:{server.port}/", {})
        assert not caught.value.sent
    assert server.seen == []


def test_a_server_without_tls_never_gets_a_request(certificates: Certificates) -> None:
    with serving(lambda peer: peer.answer(200)) as server:
        out = Outgoing([f"tool.example:{server.port}"], lookup=names("127.0.0.1"))
        with pytest.raises(NotSent):
            out.send("POST", f"https://tool.example:{server.port}/", {"X-Secret": "s"}, b"secret", seconds=3)
    assert all(b"secret" not in seen.body for seen in server.seen)


def test_a_redirect_is_an_answer_and_not_followed() -> None:
    with (
        serving(lambda peer: peer.answer(200)) as inner,
        serving(lambda peer: peer.answer(307, Location=inner.url + "/x")) as outer,
    ):
        out = Outgoing([f"127.0.0.1:{outer.port}", f"127.0.0.1:{inner.port}"])
        assert out.send("POST", outer.url, {}, b"x").status == 307
        assert inner.connections == 0


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"nonsense\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    ],
)  # fmt: skip
def test_an_answer_that_is_no_http_or_breaks_off_is_lost(raw: bytes) -> None:
    with serving(lambda peer: peer.raw(raw)) as server, pytest.raises(Lost):
        Outgoing([f"127.0.0.1:{server.port}"]).send("GET", server.url, {})


def test_what_can_not_be_reached_was_not_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(NotSent) as caught:
        Outgoing([f"127.0.0.1:{port}"]).send("GET", f"http://127.0.0.1:{port}/", {})
    assert not caught.value.sent


def test_the_next_address_is_tried() -> None:
    with serving(lambda peer: peer.answer(200, b"ok")) as server:
        out = Outgoing([f"tool.example:{server.port}"], lookup=names("127.0.0.9", "127.0.0.1"))
        assert out.send("GET", f"http://tool.example:{server.port}/", {}).body == b"ok"


def test_a_resolver_that_hangs_or_fails_is_not_waited_for() -> None:
    def hang(*_: object) -> list[object]:
        over.wait(10)
        return []

    def fail(*_: object) -> list[object]:
        raise socket.gaierror(-2, "no such name")

    over = threading.Event()
    with pytest.raises(NotSent, match="in time"):
        Outgoing(lookup=hang).send("GET", "https://tool.example/", {}, seconds=0.3)
    over.set()
    with pytest.raises(NotSent, match="can't be resolved"):
        Outgoing(lookup=fail).send("GET", "https://tool.example/", {})


@pytest.mark.parametrize(
    "given",
    [{"Host": "x"}, {"content-length": "3"}, {"X": "a\r\nb"}, {"X\r\n": "a"}, {"X": "ü…"}, {"Connection": "keep-alive"}],
)
def test_a_header_that_would_break_the_request_is_refused(given: dict[str, str]) -> None:
    with serving(lambda peer: peer.answer(200)) as server:
        with pytest.raises(Refused):
            Outgoing([f"127.0.0.1:{server.port}"]).send("GET", server.url, given)
        assert server.connections == 0


def test_neither_proxies_of_the_environment_nor_cookies_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        serving(lambda peer: peer.answer(502)) as proxy,
        serving(lambda peer: peer.answer(200, Set_Cookie="a=b")) as server,
    ):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"):
            monkeypatch.setenv(name, proxy.url)
        out = Outgoing([f"127.0.0.1:{server.port}"])
        assert [out.send("GET", server.url, {}).status for _ in range(2)] == [200, 200]
        assert proxy.connections == 0
    assert all("cookie" not in seen.headers for seen in server.seen)
    assert server.connections == 2


def test_an_error_never_names_the_address(certificates: Certificates) -> None:
    def messages() -> Iterator[str]:
        for lookup, url in [
            (names("127.0.0.1"), "https://hidden.example/"), (names(), "https://hidden.example/"), (None, "http://hidden.example/"),
        ]:  # fmt: skip
            with pytest.raises(OutgoingError) as caught:
                Outgoing(lookup=lookup).send("GET", url, {})
            yield str(caught.value)
        with serving(lambda peer: None, certificates.server("other.example")) as server:
            for allow in ([], [str(certificates.authority)]):
                out = Outgoing([f"hidden.example:{server.port}", *allow], lookup=names("127.0.0.1"))
                with pytest.raises(OutgoingError) as caught:
                    out.send("GET", f"https://hidden.example:{server.port}/", {})
                yield str(caught.value)

    for message in messages():
        assert "hidden" not in message
        assert "127.0.0.1" not in message


def test_it_works_in_a_process_that_gevent_has_patched(certificates: Certificates) -> None:
    program = """
import sys
from gevent import monkey; monkey.patch_all()
import gevent, time
from app.outgoing.client import Outgoing
from app.outgoing.errors import OutgoingError
def lookup(host, port, *_):
    return [(2, 1, 6, "", ("127.0.0.1", port))]
out = Outgoing(sys.argv[2:], lookup=lookup)
def ask(path, seconds):
    try:
        return out.send("GET", sys.argv[1] + path, {}, seconds=seconds).body.decode()
    except OutgoingError as error:
        return type(error).__name__
started = time.monotonic()
jobs = [gevent.spawn(ask, "/slow", 1.0), gevent.spawn(ask, "/drip", 1.0), *(gevent.spawn(ask, "/", 5) for _ in range(5))]
gevent.joinall(jobs)
print(*(job.value for job in jobs), time.monotonic() - started < 3)
"""

    def handle(peer: Peer) -> None:
        if peer.seen.path == "/slow":
            peer.wait(10)
        elif peer.seen.path == "/drip":
            dripping_body(peer)
        else:
            peer.answer(200, b"ok")

    for tls in (None, certificates.server("tool.example")):
        with serving(handle, tls) as server:
            url = server.url if tls is None else f"https://tool.example:{server.port}"
            allow = [url.partition("://")[2], str(certificates.authority)]
            done = subprocess.run(
                [sys.executable, "-c", program, url, *allow], cwd=ROOT, capture_output=True, text=True, timeout=60
            )
        assert done.stdout.split() == ["Lost", "Lost", *["ok"] * 5, "True"], done.stderr


def test_it_serves_as_the_session_of_a_push_library() -> None:
    from pywebpush import WebPusher

    with serving(lambda peer: peer.answer(201, b"made", Location="/m/1")) as server:
        session = PushSession(Outgoing([f"127.0.0.1:{server.port}"]))
        answer: Any = WebPusher({"endpoint": server.url + "/push"}, requests_session=session).send(None, {"Topic": "t"}, ttl=9)
    assert (answer.status_code, answer.text, answer.reason, answer.headers["location"]) == (201, "made", "Created", "/m/1")
    seen: Seen = server.seen[0]
    assert (seen.path, seen.headers["topic"], seen.headers["ttl"]) == ("/push", "t", "9")
