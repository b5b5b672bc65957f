"""Calls of registered tools: bounded in time and size, and every failure an answer to the model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import httpx2
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities import openapi
from activities.dependencies import Dependencies
from activities.egress import AnswerTooLarge, EgressRefused
from activities.failures import typed_failures
from activities.heartbeats import heartbeats
from activities.mcp_servers import Changed, McpServers, ProtocolFailed
from activities.secrets import SecretMissing, Secrets
from activities.tool_drafts import Answer, SourceRefused, ToolRefused, ToolUnavailable
from activities.tool_results import ToolResults
from inference.json_schema import first_problem
from store import audit, tool_registry
from store.tool_registry import ToolRecord
from workflows.contracts import ToolInput, ToolOutput

__all__ = ["RegisteredTools", "destination_of", "plain_reason"]

_HIDDEN = "[secret]"


def destination_of(target: dict[str, Any]) -> str:
    """Return `host:port` that a tool's calls go to; of a started server, its name."""
    if "server" in target:
        return f"server:{target['server']}"
    url = httpx2.URL(target["url"])
    return f"{url.host}:{url.port or (443 if url.scheme == 'https' else 80)}"


class RegisteredTools:
    """Tools of OpenAPI documents and MCP servers."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._results = ToolResults(deps)
        self._mcp = McpServers(deps.egress, deps.settings.mcp_servers or {})
        self._secrets = Secrets(deps.settings.tool_secrets_file)

    @activity.defn(name="tools.call")
    @typed_failures
    async def call(self, call: ToolInput) -> ToolOutput:
        """Make a call.

        Raises:
            ApplicationError: `ToolUnavailable`: the tool did not answer, and is tried again.
        """

        async def run(arguments: dict[str, Any]) -> Answer:
            try:
                return await self._attempt(call, arguments)
            except ToolUnavailable as error:
                if activity.info().attempt >= call.max_attempts:
                    return Answer(f"the tool is not available: {error}", ok=False)
                raise _again(error) from None

        async with heartbeats():
            return await self._results.of(call, run, untrusted=True)

    async def _attempt(self, call: ToolInput, arguments: dict[str, Any]) -> Answer:
        """Make one attempt; what is sure to happen again is an answer already."""
        try:
            tool = await self._definition(call, arguments)
            if tool.kind != "openapi":
                await self._mcp.servers()
            async with asyncio.timeout(call.timeout_seconds):
                return await self._made(tool, call, arguments)
        except ToolUnavailable:
            raise
        except TimeoutError:
            raise ToolUnavailable(f"no answer within {call.timeout_seconds} seconds") from None
        except (SourceRefused, ToolRefused, EgressRefused, AnswerTooLarge, SecretMissing) as error:
            if isinstance(error, Changed):
                await self._report_change(call)
            return Answer(f"the call failed: {error}", ok=False)
        except (httpx2.HTTPError, ProtocolFailed, OSError, ExceptionGroup) as error:
            raise ToolUnavailable(plain_reason(error)) from None

    async def _definition(self, call: ToolInput, arguments: dict[str, Any]) -> ToolRecord:
        """Return what is called, if it may be and the arguments fit."""
        organisation, name = call.tenant.organisation_id, call.tool_call.name
        # Asked anew each time: what was removed a moment ago is not called.
        tool = await tool_registry.definition(
            self._deps.db, organisation, name, call.definition or ""
        )
        if tool is None or tool.removed_at is not None:
            raise ToolRefused("the tool was removed, or registered anew, since the task began")
        problem = first_problem(json.dumps(tool.input_schema), arguments)
        if problem is not None:
            raise ToolRefused(f"the arguments do not fit: {problem}")
        return tool

    async def _made(self, tool: ToolRecord, call: ToolInput, arguments: dict[str, Any]) -> Answer:
        headers = self._secrets.headers(
            tool.target.get("auth", ()),
            organisation_id=call.tenant.organisation_id,
            destination=destination_of(tool.target),
        )
        answer = await self._ask(tool, call, arguments, headers)
        # A service that repeats what it was sent must not put a secret into a transcript.
        text = answer.text
        for item in tool.target.get("auth", ()):
            text = text.replace(headers[item["header"]].removeprefix(item["prefix"]), _HIDDEN)
        return Answer(text, answer.ok)

    async def _ask(
        self,
        tool: ToolRecord,
        call: ToolInput,
        arguments: dict[str, Any],
        headers: dict[str, str],
    ) -> Answer:
        max_bytes = self._deps.settings.tool_max_bytes
        if tool.kind == "openapi":
            return await openapi.call(
                self._deps.egress,
                tool.target,
                arguments,
                headers=headers,
                call_id=call.call_id,
                timeout_s=call.timeout_seconds,
                max_bytes=max_bytes,
            )
        servers = await self._mcp.servers()
        return await servers.call(
            tool.target,
            arguments,
            source=tool.source,
            digest=tool.digest,
            headers=headers,
            call_id=call.call_id,
            timeout_s=call.timeout_seconds,
            max_bytes=max_bytes,
        )

    async def _report_change(self, call: ToolInput) -> None:
        await audit.append(
            self._deps.db,
            call.tenant.organisation_id,
            actor="tools",
            action="tool.changed",
            subject=call.tool_call.name,
            detail={"call_id": call.call_id, "registered": call.definition},
        )


def _again(error: ToolUnavailable) -> ApplicationError:
    return ApplicationError(
        str(error),
        type=ToolUnavailable.__name__,
        category=ApplicationErrorCategory.BENIGN,
        next_retry_delay=(
            timedelta(seconds=error.retry_after_s) if error.retry_after_s is not None else None
        ),
    )


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def plain_reason(error: BaseException) -> str:
    """Return why there was no answer, without a word of a stranger's in it."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, httpx2.TimeoutException):
            return "no answer in time"
        if isinstance(leaf, ProtocolFailed):
            return "the MCP server answered with an error of the protocol"
    return f"the connection failed ({type(leaves[0]).__name__})"
