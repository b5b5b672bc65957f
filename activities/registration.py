"""Registering tools: their source is read once, and what it said then is what may be called."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
from pydantic import ValidationError
from temporalio import activity

from activities import openapi
from activities.dependencies import Dependencies
from activities.egress import AnswerTooLarge, EgressRefused
from activities.failures import typed_failures
from activities.mcp_servers import MOST_TOOLS, McpServers, ProtocolFailed
from activities.registered_tools import destination_of, plain_reason
from activities.secrets import SecretMissing, Secrets
from activities.tool_drafts import Draft, SourceRefused, ToolRefused
from store import audit, blobs, tool_registry
from store.tool_registry import ToolRecord
from workflows.contracts import Registered, RegisterInput
from workflows.errors import ToolSourceRefused
from workflows.tool_requests import ToolRegistration

__all__ = ["Registration"]

SOURCE_SECONDS = 20


class Registration:
    """Reads sources of tools."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._mcp = McpServers(deps.egress, deps.settings.mcp_servers or {})
        self._secrets = Secrets(deps.settings.tool_secrets_file)

    @activity.defn(name="tools.register")
    @typed_failures
    async def register(self, call: RegisterInput) -> Registered:
        """Read a source and make its tools callable.

        Raises:
            ApplicationError: `ToolSourceRefused`, with the reason in words.
        """
        organisation = call.tenant.organisation_id
        request = ToolRegistration.model_validate_json(
            await blobs.get(self._deps.db, organisation, call.request)
        )
        if request.kind == "mcp":
            await self._mcp.servers()
        try:
            async with asyncio.timeout(SOURCE_SECONDS):
                drafts = await self._drafts(request, call)
        except TimeoutError:
            raise ToolSourceRefused(f"no answer within {SOURCE_SECONDS} seconds") from None
        except (SourceRefused, ToolRefused, EgressRefused, AnswerTooLarge, SecretMissing) as error:
            raise ToolSourceRefused(str(error)) from None
        except (
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ProtocolFailed,
            OSError,
            ExceptionGroup,
            ValidationError,
        ) as error:
            raise ToolSourceRefused(plain_reason(error)) from None
        await tool_registry.register(
            self._deps.db, organisation, request.name, [_record(request, draft) for draft in drafts]
        )
        await audit.append(
            self._deps.db,
            organisation,
            actor=str(call.tenant.key_id),
            action="tool.registered",
            subject=request.name,
            detail={draft.name: draft.digest for draft in drafts},
        )
        return Registered(source=request.name, tools=tuple(draft.name for draft in drafts))

    async def _drafts(self, request: ToolRegistration, call: RegisterInput) -> list[Draft]:
        auth = [item.model_dump() for item in request.auth]
        if request.kind == "mcp":
            return await self._of_mcp(request, call, auth)
        document = request.document
        if document is None:
            document = await self._fetched(str(request.url))
        return openapi.drafts(
            document,
            source=request.name,
            base_url=request.base_url,
            document_url=request.url,
            operations=request.operations,
            auth=auth,
        )

    async def _of_mcp(
        self, request: ToolRegistration, call: RegisterInput, auth: list[dict[str, Any]]
    ) -> list[Draft]:
        where: dict[str, Any] = (
            {"server": request.server} if request.server is not None else {"url": request.url}
        )
        where["auth"] = auth
        servers = await self._mcp.servers()
        offered = await servers.drafts(
            where,
            source=request.name,
            headers=self._secrets.headers(
                auth,
                organisation_id=call.tenant.organisation_id,
                destination=destination_of(where),
            ),
            timeout_s=SOURCE_SECONDS,
            max_bytes=self._deps.settings.tool_max_bytes,
        )
        wanted = request.operations or tuple(offered)
        if missing := [name for name in wanted if name not in offered]:
            raise SourceRefused(f"the server offers no tool {missing[0]!r}")
        if not 1 <= len(wanted) <= MOST_TOOLS:
            raise SourceRefused(f"1 to {MOST_TOOLS} tools are taken, not {len(wanted)}")
        return [offered[name] for name in dict.fromkeys(wanted)]

    async def _fetched(self, url: str) -> dict[str, Any]:
        async with self._deps.egress.client(
            timeout_s=SOURCE_SECONDS, max_bytes=self._deps.settings.tool_max_bytes
        ) as http:
            response = await http.get(url)
        if response.status_code != 200:
            raise SourceRefused(f"its address answered {response.status_code}")
        try:
            document = json.loads(response.content)
        except (ValueError, RecursionError):
            raise SourceRefused("what is at its address is not JSON") from None
        if not isinstance(document, dict):
            raise SourceRefused("what is at its address is no OpenAPI document")
        return document


def _record(request: ToolRegistration, draft: Draft) -> ToolRecord:
    approval = request.model_dump(mode="json")["approval"]
    return ToolRecord(
        name=draft.name,
        digest=draft.digest,
        source=request.name,
        kind=request.kind,
        description=draft.description,
        input_schema=draft.input_schema,
        target=draft.target,
        approval=approval,
        timeout_seconds=request.timeout_seconds,
        max_attempts=request.max_attempts,
    )
