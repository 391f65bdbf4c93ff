"""A server of the `mcp` package that speaks streamable HTTP: `python -m tests.tools.mcp_peer PORT`. It works until it is killed.

with mcp_server() as url:
    ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

from tests.support.client import until
from tests.support.dev import ROOT, environment


@contextlib.contextmanager
def mcp_server() -> Iterator[str]:
    """The address of a running one."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "tests.tools.mcp_peer", str(port)]
    with subprocess.Popen(argv, cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:

        def listens() -> bool:
            assert process.poll() is None
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return True
            return False

        try:
            until("the MCP server listens", listens)
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()


def server() -> MCPServer:
    """The tools."""
    made = MCPServer("peer")

    @made.tool(description="adds, and reports")
    async def add(a: int, b: int, context: Context) -> int:
        await context.report_progress(1, 2, "half")
        return a + b

    @made.tool(description="says who asks")
    def who(context: Context) -> str:
        headers = dict(context.headers or {})
        return f"{headers.get('authorization')} {headers.get('x-deployment')}"

    @made.tool(description="fails")
    def fail() -> str:
        raise ValueError("out of order")

    @made.tool(description="takes its process away")
    def die() -> str:
        os._exit(1)

    return made


if __name__ == "__main__":
    asyncio.run(server().run_streamable_http_async(port=int(sys.argv[1])))
