"""Tools of MCP servers. Each call has a session of its own: nothing of one caller meets another.

Imported by `mcp_servers` when the first server is asked for, and by nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import httpx2
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.types import RequestParamsMeta, TextContent

from activities.egress import AnswerTooLarge, Egress, EgressRefused
from activities.mcp_servers import MOST_TOOLS, Changed, ProtocolFailed
from activities.tool_drafts import Answer, Draft, SourceRefused, ToolRefused, draft

__all__ = ["Servers"]

_OURS = (EgressRefused, AnswerTooLarge, SourceRefused, ToolRefused)
MOST_PAGES = 10


@contextmanager
def _ungrouped() -> Iterator[None]:
    """Raise what one of our own checks raised by itself; sessions wrap it in groups of groups.

    Else what the wire or the protocol failed with, so that nobody else needs to know the SDK.
    """
    try:
        yield
    except MCPError:
        raise ProtocolFailed from None
    except BaseExceptionGroup as group:
        found = _first(group, _OURS)
        if found is None and isinstance(group, ExceptionGroup):
            found = _first(group, (httpx2.TimeoutException, MCPError))
        if found is None:
            raise
        raise (ProtocolFailed() if isinstance(found, MCPError) else found) from None


def _first(
    group: BaseExceptionGroup[BaseException], kinds: tuple[type[Exception], ...]
) -> BaseException | None:
    found: BaseException | None = group.subgroup(kinds)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _environment(where: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    """Return a started server's secrets, each under its own name.

    The operator chose those names. A header's name is a tenant's, who must not name `LD_PRELOAD`.
    """
    return {
        str(item["secret"]): headers[item["header"]].removeprefix(item["prefix"])
        for item in where.get("auth", ())
    }


def _nowhere() -> TextIO:
    """What a server says beside its answers may repeat what it was asked: nothing for our logs."""
    return Path(os.devnull).open("w")


class Servers:
    """MCP servers as workers reach them.

    Args:
        egress: The way out.
        commands: Servers that may be started, by name.
    """

    def __init__(self, egress: Egress, commands: Mapping[str, Sequence[str]]) -> None:
        self._egress = egress
        self._commands = commands

    async def drafts(
        self,
        where: Mapping[str, Any],
        *,
        source: str,
        headers: Mapping[str, str],
        timeout_s: float,
        max_bytes: int,
    ) -> dict[str, Draft]:
        """Return what a server offers, by its own names.

        Raises:
            SourceRefused: The server is not one that may be started, or offers nothing usable.
            EgressRefused: It may not be reached.
        """
        with _ungrouped():
            async with self._session(where, headers, timeout_s, max_bytes) as client:
                return await self._list(client, where, source)

    async def call(
        self,
        where: Mapping[str, Any],
        arguments: dict[str, Any],
        *,
        source: str,
        digest: str,
        headers: Mapping[str, str],
        call_id: str,
        timeout_s: float,
        max_bytes: int,
    ) -> Answer:
        """Call a tool whose definition is still the one that was registered.

        Raises:
            Changed: It is not.
            SourceRefused, EgressRefused: As `drafts`.
        """
        name = str(where["tool"])
        meta = cast("RequestParamsMeta", {"idempotencyKey": call_id})
        with _ungrouped():
            async with self._session(where, headers, timeout_s, max_bytes) as client:
                offered = await self._list(client, where, source, only=name)
                if name not in offered or offered[name].digest != digest:
                    raise Changed("its definition is not the registered one; register it anew")
                result = await client.call_tool(name, arguments, meta=meta)
        texts = [block.text for block in result.content if isinstance(block, TextContent)]
        if not texts and result.structured_content is not None:
            texts = [json.dumps(result.structured_content, ensure_ascii=False)]
        text = "\n".join(texts) or "done (no text)"
        if len(text.encode()) > max_bytes:
            raise ToolRefused(f"the answer is longer than {max_bytes:,} bytes")
        return Answer(text, ok=not result.is_error)

    async def _list(
        self, client: Client, where: Mapping[str, Any], source: str, only: str | None = None
    ) -> dict[str, Draft]:
        found: dict[str, Draft] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            page = await client.list_tools(cursor=cursor)
            for tool in page.tools:
                if only is not None and tool.name != only:
                    continue
                target = {**where, "tool": tool.name}
                found[tool.name] = draft(
                    source, tool.name, tool.description or "", dict(tool.input_schema), target
                )
            cursor = page.next_cursor
            if cursor is None or len(found) > MOST_TOOLS:
                break
        return found

    @asynccontextmanager
    async def _session(
        self,
        where: Mapping[str, Any],
        headers: Mapping[str, str],
        timeout_s: float,
        max_bytes: int,
    ) -> AsyncIterator[Client]:
        if "server" in where:
            command = self._commands.get(str(where["server"]))
            if not command:
                raise SourceRefused("the operator allows no MCP server of that name to be started")
            started = StdioServerParameters(
                command=command[0], args=list(command[1:]), env=_environment(where, headers)
            )
            with _nowhere() as nowhere:
                async with Client(
                    stdio_client(started, errlog=nowhere), read_timeout_seconds=timeout_s
                ) as client:
                    yield client
            return
        url = httpx2.URL(str(where["url"]))
        # Refused here in plain words: inside the session the same refusal is an odd failure.
        self._egress.check(url)
        try:
            await self._egress.addresses(
                url.host, url.port or (443 if url.scheme == "https" else 80)
            )
        except OSError:
            raise EgressRefused("the name is not known") from None
        async with (
            self._egress.client(timeout_s=timeout_s, max_bytes=max_bytes, headers=headers) as http,
            Client(
                streamable_http_client(str(url), http_client=http), read_timeout_seconds=timeout_s
            ) as client,
        ):
            yield client
