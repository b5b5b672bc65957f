"""A tiny MCP server on stdin and stdout, as an operator would have workers start it.

python stdio_server.py FOLDER: its process ids are noted in FOLDER.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("letters")


@server.tool(description="says it louder")
def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


@server.tool(description="takes its time, once per mark")
async def ponder(mark: str) -> str:
    """Note who works on a mark, and work for ever; whoever comes next finds it done."""
    note = Path(sys.argv[1]) / mark
    if not note.exists():
        note.write_text(str(os.getpid()))
        await asyncio.sleep(600)
    return "pondered"


@server.tool(description="tells what it was given")
def given() -> str:
    """Return the names of the environment, and the secret it was started with."""
    return " ".join([*sorted(os.environ), os.environ.get("LETTERS_KEY", "-")])


if __name__ == "__main__":
    server.run("stdio")
