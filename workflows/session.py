"""`Session`: sees to the turns of a conversation, one after the other in the order of its messages.

What was said is in Postgres; a signal only says that there is something. The workflow ends when
nothing is said for a while, and the next message starts it again. Between two turns a long one
goes on in a new run.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from workflows import policies
    from workflows.chain import was_cancelled
    from workflows.contracts import NextTurn, SessionInput, SessionOutcome
    from workflows.errors import Internal
    from workflows.filed_task import carry_filed

__all__ = ["Session"]


@workflow.defn(name="Session")
class Session:
    """One conversation."""

    @workflow.init
    def __init__(self, session: SessionInput) -> None:
        """Begin, or go on: where it is, is in the session's rows."""
        self._session = session
        self._told = False

    @workflow.run
    async def run(self, session: SessionInput) -> SessionOutcome:
        """Take every turn, then wait for the next message for a while.

        Raises:
            ApplicationError: A defect of ours; the next message starts the session again.
        """
        try:
            return await self._turns()
        except (workflow.ContinueAsNewError, ActivityError):
            raise
        except Exception as error:
            if was_cancelled(error):
                raise
            # Left to itself, Temporal would retry the workflow task for ever.
            raise ApplicationError(
                f"a defect: {type(error).__name__}", type=Internal.type(), non_retryable=True
            ) from error

    @workflow.signal
    def message(self, number: int = 0) -> None:
        """Look whether something was said, or the session was closed."""
        self._told = True

    async def _turns(self) -> SessionOutcome:
        turns = 0
        while True:
            self._told = False
            turn = await self._next()
            if turn.task is not None:
                await carry_filed(turn.task, turn.headline)
                turns += 1
                self._go_on_in_a_new_run_if_long()
            # One whose message was refused has had its turn.
            elif turn.number is None and not await self._is_told(closed=turn.closed):
                return SessionOutcome(session_id=self._session.session_id, turns=turns)

    async def _next(self) -> NextTurn:
        turn: NextTurn = await workflow.execute_activity(
            "sessions.next",
            self._session,
            result_type=NextTurn,
            summary="whose turn is it?",
            **policies.MONEY,
        )
        return turn

    async def _is_told(self, *, closed: bool) -> bool:
        """Wait for a message for a while; not at all when the session is closed."""
        if not closed:
            with contextlib.suppress(TimeoutError):
                await workflow.wait_condition(
                    lambda: self._told, timeout=timedelta(seconds=self._session.idle_seconds)
                )
        return self._told

    def _go_on_in_a_new_run_if_long(self) -> None:
        if workflow.info().is_continue_as_new_suggested():
            workflow.continue_as_new(self._session)
