"""What is said to a running task: heard of by its number, read between two steps.

The words are in Postgres, in order. A signal only says that there are some, so one that gets lost
delays them and no more: the settlement of an answer looks for them before it ends the task.
"""

from __future__ import annotations

from temporalio import workflow

from workflows import policies
from workflows.contracts import TakeInput, Taken, TaskInput
from workflows.loop import Loop

__all__ = ["Inbox"]


class Inbox:
    """The messages of one task.

    Attributes:
        told: Number of the newest message that was heard of.
    """

    def __init__(self, task: TaskInput, loop: Loop, *, told: int) -> None:
        self._task = task
        self._loop = loop
        self._known = False
        self.told = told

    def hear(self, number: int) -> None:
        """Take note that there is a message of this number."""
        self.told = max(self.told, number)

    def look(self) -> None:
        """Take note that there is one that was not heard of yet."""
        self._known = True

    @property
    def unread(self) -> bool:
        """Whether there is something to read."""
        return self._known or self.told > self._loop.messages

    async def read(self) -> None:
        """Take what was said into the conversation, before the step that comes next."""
        told, self._known = self.told, False
        loop = self._loop
        taken: Taken = await workflow.execute_activity(
            "messages.take",
            TakeInput(
                tenant=self._task.tenant,
                task_id=self._task.task_id,
                step=loop.step + 1,
                after=loop.messages,
                digest=loop.digest,
            ),
            result_type=Taken,
            summary=f"step {loop.step + 1} · read what was said to the task",
            **policies.LOOKUP,
        )
        # Where there is none of that number, the task was ended meanwhile.
        loop.told(number=max(taken.number, told), digest=taken.digest, chars=taken.chars)
