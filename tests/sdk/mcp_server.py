"""An MCP server for tests. Its tools note in a file what they do; they answer, fail, hang, or break the link.

As a program it serves over stdio: `python -m tests.sdk.mcp_server FOLDER`.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path

from mcp import MCPError
from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import INVALID_PARAMS, ToolAnnotations

LEAVE_SECONDS = 0.1
PIXEL = b"\x89PNG\r\n\x1a\n"


def lines(folder: Path, name: str = "lines.txt") -> list[str]:
    path = folder / name
    return path.read_text("utf-8").splitlines() if path.exists() else []


def build(folder: Path, break_link: Callable[[], None]) -> MCPServer:
    server = MCPServer("lines", log_level="CRITICAL")

    def note(line: str) -> int:
        with (folder / "lines.txt").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
        return len(lines(folder))

    @server.tool()
    async def append(line: str, times: int = 1) -> int:
        """Append a line."""
        return [note(line) for _ in range(times)][-1]

    @server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
    async def look() -> str:
        """Return all lines."""
        return "\n".join(lines(folder))

    @server.tool(structured_output=False)
    async def draw() -> list[str | Image]:
        """Draw a picture."""
        return ["a picture", Image(data=PIXEL, format="png")]

    @server.tool()
    async def fail(line: str) -> int:
        """Append a line and fail."""
        note(line)
        raise ToolError("no more room")

    @server.tool()
    async def refuse(line: str) -> int:
        """Append a line and answer with an error of the protocol."""
        note(line)
        raise MCPError(INVALID_PARAMS, "a line is too long")

    @server.tool()
    async def drop(line: str) -> int:
        """Append a line and break the link."""
        note(line)
        break_link()
        await asyncio.Event().wait()
        return 0

    @server.tool()
    async def leave() -> int:
        """Return the id of the process, and break the link a little later."""
        asyncio.get_running_loop().call_later(LEAVE_SECONDS, break_link)
        return os.getpid()

    @server.tool(annotations=ToolAnnotations(idempotent_hint=True))
    async def drop_again(line: str) -> int:
        """Do the same, and do it as often as you like."""
        return await drop(line)

    @server.tool()
    async def hang(line: str) -> int:
        """Append a line and never answer."""
        note(line)
        await asyncio.Event().wait()
        return 0

    return server


if __name__ == "__main__":
    _folder = Path(sys.argv[1])
    with (_folder / "starts.txt").open("a", encoding="utf-8") as _starts:
        _starts.write("started\n")
    build(_folder, lambda: os._exit(3)).run("stdio")
