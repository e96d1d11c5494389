"""An agent whose tools come from an MCP server. The server stands in the same file, which starts it with `--server`.

Nothing says that an amount may be entered again, so it is done at most once: however often the agent dies, none is in
the book twice. The total may be read again, as the server calls that read-only.
"""

import sys
from pathlib import Path

from mcp import StdioServerParameters
from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations

from stepwell import Agent
from stepwell.adapters.mcp import mcp_tools

BOOK = Path("book.txt")
LEDGER = StdioServerParameters(command=sys.executable, args=[__file__, "--server"])

server = MCPServer("ledger")


@server.tool(structured_output=False)
def enter(amount: int, purpose: str) -> str:
    """Enter an amount into the book."""
    with BOOK.open("a", encoding="utf-8") as book:
        book.write(f"{amount} {purpose}\n")
    return f"{purpose}: {amount}"


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def total() -> str:
    """Return the total of the book."""
    return str(sum(int(line.split()[0]) for line in BOOK.read_text("utf-8").splitlines()))


async def handle(amounts: dict[str, int]) -> str:
    async with mcp_tools(LEDGER, prefix="ledger.") as tools:
        entered = [await tools["ledger.enter"](amount=amount, purpose=purpose) for purpose, amount in amounts.items()]
        return f"{'; '.join(entered)}; together {await tools['ledger.total']()}"


if __name__ == "__main__":
    if "--server" in sys.argv:
        server.run("stdio")
    else:
        Agent("bookkeeper").run(handle)
