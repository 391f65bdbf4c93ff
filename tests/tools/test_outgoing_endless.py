"""The guarded client against servers that never end: cut by size, at the deadline, or when it is told to stop."""

from __future__ import annotations

import socket
import threading
import time
from typing import Any

import pytest

from app.outgoing.client import Outgoing
from app.outgoing.errors import Lost, NotSent, TooMuch
from tests.tools.loopback import Peer, serving


def endless(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\n\r\n")
    while not peer.stopped.is_set():
        peer.raw(b"x" * 65536)


def gigabyte(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1073741824\r\n\r\n")
    for _ in range(1 << 14):
        peer.raw(b"x" * 65536)


def chunks(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while not peer.stopped.is_set():
        peer.raw(b"1;" + b"e" * 1000 + b"\r\nx\r\n")


def trailers(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
    while not peer.stopped.is_set():
        peer.raw(b"X: " + b"y" * 1000 + b"\r\n")


def headers(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\n")
    while not peer.stopped.is_set():
        peer.raw(b"X: " + b"y" * 30000 + b"\r\n")


def early(peer: Peer) -> None:
    while not peer.stopped.is_set():
        peer.raw(b"HTTP/1.1 100 Continue\r\n\r\n")


@pytest.mark.parametrize("handle", [endless, gigabyte, chunks, trailers, headers, early])
def test_an_answer_that_does_not_end_is_cut_by_its_size(handle: Any) -> None:
    with serving(handle) as server:
        out = Outgoing([f"127.0.0.1:{server.port}"])
        started = time.monotonic()
        with pytest.raises(TooMuch) as caught:
            out.send("GET", server.url, {}, limit=100_000, seconds=20)
        assert caught.value.sent
        assert time.monotonic() - started < 10


def silent(peer: Peer) -> None:
    peer.wait()


def dripping_headers(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nX: ")
    while not peer.stopped.wait(0.05):
        peer.raw(b"y")


def dripping_body(peer: Peer) -> None:
    peer.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
    while not peer.stopped.wait(0.05):
        peer.raw(b"y")


@pytest.mark.parametrize("handle", [silent, dripping_headers, dripping_body])
def test_an_answer_that_never_comes_is_cut_at_the_deadline(handle: Any) -> None:
    with serving(handle) as server:
        out = Outgoing([f"127.0.0.1:{server.port}"])
        started = time.monotonic()
        with pytest.raises(Lost, match="in time"):
            out.send("GET", server.url, {}, seconds=0.6)
        assert 0.5 < time.monotonic() - started < 3


def test_a_request_is_cut_when_it_is_told_to_stop() -> None:
    hung_up = threading.Event()

    def handle(peer: Peer) -> None:
        stop.set()
        if peer.gone(10):
            hung_up.set()

    stop = threading.Event()
    with serving(handle) as server:
        out = Outgoing([f"127.0.0.1:{server.port}"])
        with pytest.raises(Lost, match="told to stop"):
            out.send("GET", server.url, {}, seconds=30, stopped=stop.is_set)
        assert hung_up.wait(10)


def test_a_body_that_nobody_reads_is_cut_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=1) as deaf:
        port = deaf.getsockname()[1]
        out = Outgoing([f"127.0.0.1:{port}"])
        with pytest.raises(Lost):
            out.send("POST", f"http://127.0.0.1:{port}/", {}, b"x" * (32 << 20), seconds=0.6)


def test_a_handshake_that_trickles_is_cut_at_the_deadline() -> None:
    def trickle() -> None:
        sock, _ = slow.accept()
        with sock:
            try:
                sock.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB
                while not over.wait(0.05):
                    sock.sendall(b"\x00")
            except OSError:
                return

    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as slow:
        port = slow.getsockname()[1]
        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with pytest.raises(NotSent, match="in time"):
            Outgoing([f"127.0.0.1:{port}"]).send("GET", f"https://127.0.0.1:{port}/", {}, seconds=0.6)
        over.set()
        thread.join(5)
