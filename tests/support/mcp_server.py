"""An MCP server made with the `mcp` package, as a program: over stdio, or over HTTP.

python tests/support/mcp_server.py
python tests/support/mcp_server.py FILE     # writes its port there
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from pathlib import Path

import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ToolAnnotations

server = MCPServer("for tests", log_level="ERROR")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail() -> str:
    """Raise an error."""
    raise ToolError("it is broken")


@server.tool()
def hang() -> str:
    """Never answer."""
    threading.Event().wait()
    return ""


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


@server.tool()
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"{city}: 31 degrees"


@server.tool()
def letters(count: int) -> str:
    """Return so many letters."""
    return "x" * count


@server.tool()
def variables() -> str:
    """Return the names of the variables of the server's environment."""
    return " ".join(sorted(os.environ))  # noqa: TID251 - what it shows


@server.tool()
def header(context: Context) -> str:
    """Return a header of the request."""
    return str((context.headers or {}).get("x-token"))


def main() -> None:
    """Serve until the input ends, or for ever over HTTP."""
    if len(sys.argv) == 1:
        server.run("stdio")
        return
    listener = socket.create_server(("127.0.0.1", 0))
    Path(sys.argv[1]).write_text(str(listener.getsockname()[1]))
    app = server.streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
