"""MCP servers as the activities know them, apart from the SDK that speaks to them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from activities.egress import Egress
from activities.tool_drafts import ToolRefused

if TYPE_CHECKING:
    from activities.mcp_tools import Servers

__all__ = ["MOST_TOOLS", "Changed", "McpServers", "ProtocolFailed"]

MOST_TOOLS = 100


class Changed(ToolRefused):
    """The server describes the tool in another way than it did when it was registered."""


class ProtocolFailed(Exception):
    """The server answered with an error of the protocol; its text is a stranger's."""


class McpServers:
    """The servers, once somebody asks for one.

    The SDK brings a web server and three versions of the protocol, a third of what a worker's
    start would cost. Most workers never meet an MCP server, so it is imported for the first, in a
    thread: calls that are under way do not wait for it.

    Args:
        egress: The way out.
        commands: Servers that may be started, by name.
    """

    def __init__(self, egress: Egress, commands: Mapping[str, Sequence[str]]) -> None:
        self._egress = egress
        self._commands = commands
        self._servers: Servers | None = None

    async def servers(self) -> Servers:
        """Return them; ask before a time limit begins."""
        if self._servers is None:
            self._servers = await asyncio.to_thread(self._imported)
        return self._servers

    def _imported(self) -> Servers:
        from activities.mcp_tools import Servers

        return Servers(self._egress, self._commands)
