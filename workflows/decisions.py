"""Waiting for a person's word: durable, and for nothing while it lasts.

The word is on the approval's row; a signal only says that it is there, so a signal that gets lost
delays what waits and no more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import TypeVar

from temporalio import workflow

from workflows import policies
from workflows.client import SEARCH_STATUS
from workflows.contracts import ApprovalInput, Decided, TaskStatus

__all__ = ["WAITING", "Decisions"]

WAITING = "waiting for approval"
# How soon a decision is looked for that nobody told of; doubled each time.
FIRST_LOOK = timedelta(minutes=1)
LAST_LOOK = timedelta(hours=1)

Found = TypeVar("Found")


class Decisions:
    """What people are asked about one task, and what of it they have decided."""

    def __init__(self) -> None:
        self._decided: set[str] = set()
        self._waiting = 0

    def decided(self, call_id: str) -> None:
        """Take note that a person decided."""
        self._decided.add(call_id)

    async def ask(
        self, question: ApprovalInput, summary: str, look: Callable[[], Awaitable[Found | None]]
    ) -> Found:
        """Ask people, and wait for their word.

        Args:
            question: What they are asked about.
            summary: The same in a line, for the Web UI.
            look: Looks whether they have decided; nothing: not yet.
        """
        # Histories of before have no answer here.
        before: Decided | None = await workflow.execute_activity(
            "approvals.request",
            question,
            result_type=Decided,
            summary=summary[:100],
            **policies.LOOKUP,
        )
        if before is not None and before.decision is not None:
            # A run before this one had asked.
            self._decided.add(question.call_id)
        self._wait(1)
        patience = FIRST_LOOK
        while True:
            try:
                await workflow.wait_condition(
                    lambda: question.call_id in self._decided, timeout=patience
                )
            except TimeoutError:
                patience = min(2 * patience, LAST_LOOK)
            self._decided.discard(question.call_id)
            found = await look()
            if found is not None:
                break
        self._wait(-1)
        return found

    def _wait(self, more: int) -> None:
        """Tell of the first that waits for a person, and of the last one's end."""
        before = self._waiting
        self._waiting += more
        if not before:
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set(WAITING)])
        elif not self._waiting:
            running = TaskStatus.RUNNING.value
            workflow.upsert_search_attributes([SEARCH_STATUS.value_set(running)])
