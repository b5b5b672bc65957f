"""What a task waits for by its policy: a model's judgement before it begins, a person's word."""

from __future__ import annotations

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.screening import about, moderated, screened_of
from inference.json_schema import objection
from safety.findings import Verdict
from store import approvals, decisions, journal, tasks
from store.screening import decision_of
from workflows.contracts import (
    INLINE_ANSWER_CHARS,
    FiledRequest,
    Judged,
    JudgeInput,
    ReleaseAnswerInput,
    Released,
)
from workflows.errors import NotFound
from workflows.screening import texts_of
from workflows.transcript import digest_of

__all__ = ["Permissions"]


class Permissions:
    """Judges what a task is asked, and lets answers pass."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    @activity.defn(name="safety.judge")
    @typed_failures
    async def judge(self, task: JudgeInput) -> Judged:
        """Have models judge what a task is asked.

        Raises:
            ApplicationError: `SafetyUnavailable`: one cannot be asked, and the policy lets nothing
                pass then.
        """
        organisation = task.tenant.organisation_id
        row = await tasks.get_task(self._deps.db, organisation, task.task_id)
        if row is None:
            raise NotFound("no such task")
        policy = await self._deps.screening.policy(organisation, task.safety.version)
        rules = tuple(rule for rule in policy.at("input") if rule.kind == "moderation")
        # All else was screened before the task was filed.
        verdict = Verdict(
            texts=tuple(texts_of(FiledRequest.model_validate(row.input))),
            findings=(),
            outcome="allow",
            would_be="allow",
            mode=policy.mode,
            moderation=rules,
        )
        verdict = await moderated(self._deps, task, task.safety, "input", verdict)
        decision = decision_of(about(task, task.safety, "judged"), "input", verdict)
        if decision is not None:
            await decisions.note(self._deps.db, organisation, [decision])
        return Judged(screened=screened_of(task.safety, verdict))

    @activity.defn(name="generation.release")
    @typed_failures
    async def release(self, wanted: ReleaseAnswerInput) -> Released:
        """Let an answer pass that a rule holds back, once a person allows it."""
        organisation = wanted.tenant.organisation_id
        asked = await approvals.get(self._deps.db, organisation, wanted.task_id, wanted.approval_id)
        if asked is None or asked.decision is None:
            return Released()
        told, screened = wanted.generated, wanted.generated.screened
        assert screened is not None
        assert told.sealed is not None
        if asked.decision == "refuse":
            blocked = screened.model_copy(update={"outcome": "block"})
            return Released(generated=told.model_copy(update={"screened": blocked}))
        kept = await self._deps.held.read(organisation, wanted.task_id, told.sealed)
        text = str(kept["text"])
        await journal.release_text(self._deps.db, organisation, wanted.generation_key, text)
        schema = (
            await tasks.load_output_schema(self._deps.db, organisation, wanted.task_id)
            if wanted.output is not None
            else None
        )
        return Released(
            generated=told.model_copy(
                update={
                    "digest": digest_of(text),
                    "chars": len(text),
                    "answer": text if len(text) <= INLINE_ANSWER_CHARS else None,
                    "invalid": None if schema is None else objection(schema, text, "stop"),
                    "screened": screened.model_copy(update={"outcome": "allow"}),
                }
            )
        )
