"""`CallTask`: takes up a call whose process died, and carries it to its end.

A call of the fast lane has no workflow while all is well. One activity goes on from the journal; if
nothing comes of it, another one ends the call, so that no hold and no slot outlives it.
"""

from __future__ import annotations

import asyncio

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import was_cancelled
    from workflows.client import SEARCH_STATUS
    from workflows.contracts.call import CallEnd, CallInput
    from workflows.failures import describe
    from workflows.waiting import wait_out

__all__ = ["CallTask"]


@workflow.defn(name="CallTask")
class CallTask:
    """Carries one call to its end."""

    @workflow.run
    async def run(self, call: CallInput) -> None:
        """Go on with the call, or end it.

        Raises:
            ApplicationError: It failed; the type and code are those of `workflows.errors`.
            asyncio.CancelledError: It was cancelled.
        """
        try:
            await workflow.execute_activity(
                "calls.finish",
                call,
                summary="its process died: go on from the journal",
                **policies.GENERATE_WITH_FALLBACK,
            )
        except (ActivityError, asyncio.CancelledError) as error:
            cancelled = was_cancelled(error)
            failure = None if cancelled else describe(error, step=1)
            ending = workflow.start_activity(
                "calls.end",
                CallEnd(**call.model_dump(), cancelled=cancelled, error=failure),
                summary="end the call: pay for what was made",
                **policies.MONEY,
            )
            await wait_out(ending)
            ending.result()
            self._mark("cancelled" if cancelled else "failed")
            if failure is None:
                raise asyncio.CancelledError from error
            raise ApplicationError(
                f"{failure.message} ({failure.code})",
                failure,
                type=failure.code,
                non_retryable=True,
            ) from error
        self._mark("succeeded")

    def _mark(self, status: str) -> None:
        workflow.upsert_search_attributes([SEARCH_STATUS.value_set(status)])
