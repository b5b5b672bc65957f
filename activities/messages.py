"""What is said to a running task: taken into its conversation between two steps."""

from __future__ import annotations

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from store import messages
from workflows.contracts import TakeInput, Taken
from workflows.transcript import extend, said

__all__ = ["Messages"]


class Messages:
    """Takes messages in, each once and in order."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="messages.take")
    @typed_failures
    async def take(self, asked: TakeInput) -> Taken:
        """Take what is queued into the conversation. Asked again, it gives what it took, too."""
        taken = await messages.take_messages(
            self._deps.db,
            asked.tenant.organisation_id,
            asked.task_id,
            step=asked.step,
            after=asked.after,
        )
        digest = asked.digest
        for _, content in taken:
            digest = extend(digest, said("user", content))
        return Taken(
            number=taken[-1][0] if taken else asked.after,
            digest=digest,
            chars=sum(len(content) for _, content in taken),
        )
