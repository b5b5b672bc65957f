"""Plays the worker: writes what a worker writes, through the store."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from uuid_utils.compat import uuid7

from store import journal, money, tasks
from store.database import Database
from store.identity import Principal
from tests.integration.api.conftest import MODEL, Tenant

__all__ = ["PlayedTask"]


class PlayedTask:
    """A task of one step whose words come when the test says so."""

    def __init__(self, db: Database, tenant: Tenant) -> None:
        self.id: UUID = uuid7()
        self._db = db
        self._tenant = tenant
        self._seq = 0
        self._epoch = 0

    @property
    def _generation(self) -> str:
        return f"{self.id}:1#0"

    @property
    def _organisation(self) -> UUID:
        return self._tenant.organisation_id

    async def accept(self) -> PlayedTask:
        """File the task; nobody starts it."""
        tenant = self._tenant
        principal = Principal(tenant.organisation_id, tenant.team_id, tenant.key_id, ("tasks",))
        filed = await tasks.submit_task(
            self._db,
            principal,
            task_id=self.id,
            idempotency_key=None,
            request_digest="d",
            input={"input": "say something"},
            user="ada",
            tags={"project": "apollo"},
            route="default",
            worst_case_usd=Decimal("0.01"),
            max_cost_usd=None,
        )
        assert isinstance(filed, tasks.Submitted)
        await tasks.mark_started(self._db, self._organisation, self.id, str(uuid7()))
        return self

    async def begin(self) -> PlayedTask:
        """Admit the step, stage its prompt and begin an attempt."""
        verdict = await money.admit(
            self._db,
            organisation_id=self._organisation,
            team_id=self._tenant.team_id,
            key_id=self._tenant.key_id,
            task_id=self.id,
            step=1,
            call_key=f"{self.id}:1",
            amount_usd=Decimal("0.01"),
        )
        assert isinstance(verdict, money.Admission)
        await journal.stage_prompt(
            self._db,
            organisation_id=self._organisation,
            workflow_id=f"task-{self.id}",
            task_id=self.id,
            step=1,
            call_key=f"{self.id}:1",
            candidate=0,
            channel="answer",
            model=MODEL,
            model_version="1",
            tokenizer_version="t1",
            deployment="local",
            prompt_ids=[1, 2, 3],
        )
        begun = await journal.begin_attempt(
            self._db,
            organisation_id=self._organisation,
            generation_key=self._generation,
            replica="127.0.0.1:1",
            temporal_attempt=1,
        )
        self._epoch = begun.epoch
        return self

    async def say(self, text: str) -> None:
        """Journal one chunk: one token, this text."""
        assert await journal.append_chunk(
            self._db,
            organisation_id=self._organisation,
            generation_key=self._generation,
            epoch=self._epoch,
            seq=self._seq,
            token_ids=[7],
            text=text,
        )
        self._seq += 1

    async def end(self) -> None:
        """Finish the generation, settle the call and end the task."""
        await journal.finish_attempt(
            self._db,
            organisation_id=self._organisation,
            generation_key=self._generation,
            epoch=self._epoch,
            seq=self._seq,
            token_ids=[],
            text="",
            usage=journal.AttemptUsage(3, 1, self._seq, "engine"),
            finish_reason="stop",
        )
        await money.settle(
            self._db,
            money.Settlement(
                organisation_id=self._organisation,
                task_id=self.id,
                step=1,
                call_key=f"{self.id}:1",
                outcome="succeeded",
                generation_key=self._generation,
                finish_reason="stop",
                finish=money.TaskFinish(status="succeeded"),
            ),
        )
