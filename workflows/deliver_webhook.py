"""`DeliverWebhook`: tells of a task's end or of a budget, again and again until it is heard.

One activity, which Temporal retries for about a day, and one that says so when it was given up.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.contracts import DeliverInput, DeliverOutcome
    from workflows.waiting import wait_out

__all__ = ["DeliverWebhook"]


@workflow.defn(name="DeliverWebhook")
class DeliverWebhook:
    """Carries one delivery to its end."""

    @workflow.run
    async def run(self, delivery: DeliverInput) -> DeliverOutcome:
        """Deliver, or give up after a day; a receiver that does not answer is no failure of ours.

        Raises:
            asyncio.CancelledError: Somebody cancelled it; the row says that it was given up.
        """
        try:
            outcome: DeliverOutcome = await workflow.execute_activity(
                "webhooks.deliver",
                delivery,
                result_type=DeliverOutcome,
                summary="tell whoever asked to be told",
                **policies.WEBHOOK,
            )
            return outcome
        except (ActivityError, asyncio.CancelledError):
            giving_up = workflow.start_activity(
                "webhooks.give_up",
                delivery,
                result_type=DeliverOutcome,
                summary="note that nobody could be told",
                **policies.MONEY,
            )
            await wait_out(giving_up)
            given_up: DeliverOutcome = giving_up.result()
            if workflow.cancellation_reason() is not None:
                raise asyncio.CancelledError from None
            return given_up
