"""What a caller writes to register tools; like the contracts, pydantic and nothing else."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from workflows.child_contracts import SUB_AGENT
from workflows.contracts import Approval, Asked

__all__ = ["SecretHeader", "ToolRegistration"]


class SecretHeader(Asked):
    """A header whose value is a secret that the operator keeps under a name."""

    header: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,64}$")] = Field(
        description="Name of the header, such as `Authorization`."
    )
    secret: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_]{1,64}$")] = Field(
        description="Name of the secret. Its value is looked up when the tool is called, and is "
        "sent only to the hosts that the operator allows."
    )
    prefix: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]{0,32}$")] = Field(
        default="", description="Put before the value, such as `Bearer `."
    )


class ToolRegistration(Asked):
    """Tools to register: the operations of an OpenAPI document, or the tools of an MCP server."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$")] = Field(
        description="Name of the registration; its tools are called `name.operation`. Registering "
        "under a name again replaces its tools."
    )
    kind: Literal["openapi", "mcp"] = Field(
        description="`openapi`: HTTP operations; `mcp`: an MCP server."
    )
    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_000,
        description="Where the OpenAPI 3 document (JSON) is, or the streamable HTTP endpoint of "
        "the MCP server. Fetched once, through the egress guard.",
    )
    document: dict[str, Any] | None = Field(
        default=None, description="The OpenAPI 3 document itself, instead of `url`."
    )
    server: Annotated[str, StringConstraints(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="MCP: a server that the operator lets workers start, instead of `url`.",
    )
    base_url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_000,
        description="OpenAPI: where the operations are; by default the document's first server.",
    )
    operations: tuple[Annotated[str, StringConstraints(min_length=1, max_length=128)], ...] = Field(
        default=(),
        max_length=100,
        description="Which operations (`operationId`) or MCP tools; by default all, at most 100.",
    )
    auth: tuple[SecretHeader, ...] = Field(
        default=(), max_length=4, description="Headers with secrets, sent with every call."
    )
    approval: Approval = Field(
        default="never",
        description="Which calls wait for a person: `never`, `always`, or "
        "`{when: {argument: pattern}}`. A task can ask for more, not for less.",
    )
    timeout_seconds: int = Field(
        default=30, ge=1, le=600, description="Longest time of one attempt, in seconds."
    )
    max_attempts: int = Field(
        default=3, ge=1, le=10, description="Attempts before the model is told that it failed."
    )

    @model_validator(mode="after")
    def _one_source(self) -> ToolRegistration:
        if self.name == SUB_AGENT:
            raise ValueError(f"tools of {SUB_AGENT} are agents")
        sources = [self.url, self.document, self.server]
        if sum(source is not None for source in sources) != 1:
            raise ValueError("give one of url, document and server")
        if self.kind == "openapi" and self.server is not None:
            raise ValueError("server is for kind mcp")
        if self.kind == "mcp" and (self.document is not None or self.base_url is not None):
            raise ValueError("document and base_url are for kind openapi")
        return self
