"""What is said to a running task, at the border: numbers and digests, never the words."""

from __future__ import annotations

from uuid import UUID

from pydantic import Field

from workflows.contracts.base import Wire
from workflows.contracts.task import Tenant

__all__ = ["TakeInput", "Taken"]


class TakeInput(Wire):
    """Take what is queued into the conversation, right before a step."""

    tenant: Tenant
    task_id: UUID
    step: int
    after: int = Field(description="Number of the newest message that was taken before.")
    digest: str = Field(description="Digest of the conversation so far.")


class Taken(Wire):
    """What is in the conversation now."""

    number: int = Field(description="Number of the newest message that was taken.")
    digest: str = Field(description="Digest of the conversation with it.")
    chars: int = Field(description="Length of what was taken, in characters.")
