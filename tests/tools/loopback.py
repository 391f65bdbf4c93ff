"""Servers on loopback that do to a client what a tool endpoint could do, and certificates for them.

with serving(lambda peer: peer.answer(200, b"{}")) as server:
    server.url, server.seen
"""

from __future__ import annotations

import contextlib
import datetime
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Seen(NamedTuple):
    """A request. Header names are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Peer:
    """One accepted connection with its request read; whatever a handler doesn't do, isn't done. Closed when the handler returns."""

    def __init__(self, sock: socket.socket, seen: Seen, stopped: threading.Event) -> None:
        self.sock, self.seen, self.stopped = sock, seen, stopped

    def raw(self, data: bytes) -> None:
        """Sends bytes as they are."""
        self.sock.sendall(data)

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """A proper answer."""
        lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(body)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        self.raw("\r\n".join([*lines, "", ""]).encode() + body)

    def wait(self, seconds: float = 60.0) -> None:
        """Holds the connection until the server ends."""
        self.stopped.wait(seconds)

    def gone(self, seconds: float) -> bool:
        """Whether the client hangs up within that time."""
        self.sock.settimeout(seconds)
        try:
            return not self.sock.recv(1)
        except TimeoutError:
            return False
        except OSError:
            return True


class Server:
    """Hands each request to `handle`, one thread a connection."""

    def __init__(self, handle: Callable[[Peer], None], tls: ssl.SSLContext | None) -> None:
        self._handle, self._tls = handle, tls
        self.seen: list[Seen] = []
        self.connections = 0
        self.stopped = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._socket.getsockname()[1])
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def stop(self) -> None:
        self.stopped.set()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._socket.accept()
                self.connections += 1
                self._threads.append(threading.Thread(target=self._serve, args=(sock,), daemon=True))
                self._threads[-1].start()

    def _serve(self, sock: socket.socket) -> None:
        sock.settimeout(20)
        with suppress(OSError, ValueError), contextlib.ExitStack() as stack:  # ValueError: what came isn't HTTP
            stack.callback(sock.close)
            if self._tls:
                sock = self._tls.wrap_socket(sock, server_side=True)
                stack.callback(sock.close)
            with sock.makefile("rb") as file:
                method, path, _ = file.readline().decode().split(" ", 2)
                headers = {}
                while line := file.readline().decode().strip():
                    name, _, value = line.partition(":")
                    headers[name.lower()] = value.strip()
                seen = Seen(method, path, headers, file.read(int(headers.get("content-length", 0))))
            self.seen.append(seen)
            self._handle(Peer(sock, seen, self.stopped))


@contextmanager
def serving(handle: Callable[[Peer], None], tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server for the time of the block."""
    server = Server(handle, tls)
    try:
        yield server
    finally:
        server.stop()


class Certificates:
    """An authority of a test's own, in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        builder = self._builder(name, name, self._key, days=2)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(x509.BasicConstraints(True, None), True).add_extension(usage, True)
        self._name, self._certificate = name, builder.sign(self._key, hashes.SHA256())
        self.authority = folder / "ca.pem"
        self.authority.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, host: str, *, days: int = 2) -> ssl.SSLContext:
        """TLS for a server whose certificate is for `host`, for `days` from yesterday on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, self._name, key, days=days)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{host}.pem"
        path.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(path)
        return context

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(start + datetime.timedelta(days=days, seconds=60))
            .add_extension(identifier, False)
            .add_extension(authority, False)
        )
