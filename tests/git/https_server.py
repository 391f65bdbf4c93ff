"""A git server over https for tests: `git http-backend` behind a password, on loopback, with a certificate of the test's."""

from __future__ import annotations

import base64
import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.git.lab import environment


class GitServer:
    """Serves the repositories below `root` to whoever has `user` and `token`. `asked` are the Authorization headers that came."""

    def __init__(self, root: Path, tls: ssl.SSLContext, user: str, token: str) -> None:
        self.root, self.asked = root, list[str]()
        self.wanted = "Basic " + base64.b64encode(f"{user}:{token}".encode()).decode()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.serve(self)

            def do_POST(self) -> None:
                server.serve(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.host = f"localhost:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def serve(self, call: BaseHTTPRequestHandler) -> None:
        given = call.headers.get("Authorization", "")
        self.asked.append(given)
        if call.path.startswith("/app/installations/"):
            self._app(call)
            return
        body = call.rfile.read(int(call.headers.get("Content-Length") or 0))
        if given != self.wanted:
            call.send_response(401)
            call.send_header("WWW-Authenticate", 'Basic realm="git"')
            call.send_header("Content-Length", "0")
            call.end_headers()
            return
        path, _, query = call.path.partition("?")
        env = environment() | {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": call.command,
            "CONTENT_TYPE": call.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": call.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": call.headers.get("Git-Protocol", ""),
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "GIT_CONFIG_KEY_1": "http.receivepack",
            "GIT_CONFIG_VALUE_1": "true",
            "REMOTE_USER": "tester",
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        lines = [line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line]
        status = next((int(value.split()[0]) for name, value in lines if name == "Status"), 200)
        call.send_response(status)
        for name, value in lines:
            if name != "Status":
                call.send_header(name, value)
        call.send_header("Content-Length", str(len(answer)))
        call.end_headers()
        call.wfile.write(answer)

    def _app(self, call: BaseHTTPRequestHandler) -> None:
        """An installation token, the one that git is let in with, for a signed request."""
        token = base64.b64decode(self.wanted.split()[1]).decode().split(":", 1)[1]
        answer = json.dumps({"token": token, "expires_at": "2099-01-01T00:00:00Z"}).encode()
        signed = call.headers.get("Authorization", "").removeprefix("Bearer ").count(".") == 2
        call.send_response(201 if signed else 401)
        call.send_header("Content-Length", str(len(answer)))
        call.end_headers()
        call.wfile.write(answer)
