"""MCP servers as the activities know them, apart from the SDK that speaks to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from activities.deferred import Deferred
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
    start would cost, and most workers never meet an MCP server.

    Args:
        egress: The way out.
        commands: Servers that may be started, by name.
    """

    def __init__(self, egress: Egress, commands: Mapping[str, Sequence[str]]) -> None:
        self._servers = Deferred(partial(_imported, egress, commands))

    async def servers(self) -> Servers:
        """Return them; ask before a time limit begins."""
        return await self._servers.get()


def _imported(egress: Egress, commands: Mapping[str, Sequence[str]]) -> Servers:
    from activities.mcp_tools import Servers

    return Servers(egress, commands)
