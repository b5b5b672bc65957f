"""Calls whose process died: gone on with from the journal, or ended by what is known of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.heartbeats import heartbeats
from activities.lane.asking import prompt_of, sampling_of
from activities.lane.closing import failure_document
from activities.lane.gate import FILTERED, Gate
from activities.lane.journal import LaneJournal
from activities.lane.options import Option
from activities.lane.runs import Ended, Piece, Run, TritonRun, UpstreamRun
from activities.lane.screening import ScreenedCall
from activities.lane.usages import usage_document
from activities.lost_attempts import LostAttempts
from inference.answers import Answer
from inference.errors import EngineUnavailable, RequestRefused
from observability.metrics import record_generation, record_task
from observability.spans import current_trace_id
from store import calls, journal
from store.decisions import Decision
from store.journal import AttemptTimings, AttemptUsage, Begun
from workflows.contracts import AccountInput, Candidate, GenerateInput, Sampling, Turn
from workflows.contracts.call import CallEnd, CallInput, CallSpec
from workflows.errors import ModelChanged
from workflows.screening import not_judged

__all__ = ["CallRecovery"]

_OPEN = ("accepted", "running")


class CallRecovery:
    """What a call's workflow does."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._lost = LostAttempts(deps)

    @activity.defn(name="calls.finish")
    @typed_failures
    async def finish(self, call: CallInput) -> None:
        """Go on with a call from its journal, to its answer.

        Raises:
            ApplicationError: `EngineDown` (retried, and continued); others end the call.
        """
        known = await calls.read_call(self._deps.db, call.tenant.organisation_id, call.task_id)
        if known is None or known.status not in _OPEN:
            return
        spec = CallSpec.of(known.input)
        candidate, option = await self._option(call)
        if spec.endpoint == "embeddings" or (
            option.is_upstream and not known.repeatable and spec.on_disconnect == "cancel"
        ):
            # It would be made and paid for a second time, and nobody could ask for it.
            raise ModelChanged("the process that made the call died, and nothing can be continued")
        begun = await journal.begin_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=candidate.generation_key,
            replica=option.url,
            temporal_attempt=activity.info().attempt,
            trace_id=current_trace_id(),
        )
        generate = _generate_input(call, candidate, option)
        async with heartbeats(), self._lost.resolving(generate, begun):
            if option.is_upstream and begun.text:
                begun = await self._restarted(call, begun)
            try:
                await self._run(call, spec, option, begun)
            except RequestRefused as error:
                if error.code != "cannot_resume":
                    raise
                await self._run(call, spec, option, await self._restarted(call, begun))

    @activity.defn(name="calls.end")
    @typed_failures
    async def end(self, call: CallEnd) -> None:
        """End a call that nobody goes on with; what its caller had of it is billed. Idempotent."""
        db, organisation = self._deps.db, call.tenant.organisation_id
        known = await calls.read_call(db, organisation, call.task_id)
        if known is None or known.status not in _OPEN:
            return
        candidate = await calls.begun_candidate(db, organisation, call.task_id)
        if candidate is not None:
            deployment = (await self._deps.catalogue.read()).deployments.get(candidate.deployment)
            with contextlib.suppress(EngineUnavailable):
                await self._lost.account(
                    AccountInput(
                        tenant=call.tenant,
                        task_id=call.task_id,
                        step=1,
                        call_key=f"{call.task_id}:1",
                        generation_key=candidate.generation_key,
                        triton_model=(
                            deployment.engine_model(candidate.model) if deployment else ""
                        ),
                    )
                )
        outcome = "cancelled" if call.cancelled else "failed"
        await calls.end_call(
            db,
            organisation,
            call.task_id,
            outcome=outcome,  # type: ignore[arg-type]
            winner=candidate.generation_key if candidate and call.cancelled else None,
            error=call.error.model_dump(mode="json") if call.error else None,
            trace_id=current_trace_id(),
        )
        record_task(outcome)

    async def _option(self, call: CallInput) -> tuple[calls.BegunCandidate, Option]:
        """Return what was asked last, as the catalogue has it today: another address each attempt.

        Raises:
            ModelChanged: It is not there any more, or not the same.
        """
        candidate = await calls.begun_candidate(
            self._deps.db, call.tenant.organisation_id, call.task_id
        )
        catalogue = await self._deps.catalogue.read()
        deployment = catalogue.deployments.get(candidate.deployment) if candidate else None
        model = catalogue.find(candidate.model) if candidate else None
        price = catalogue.price_of(candidate.model) if candidate else None
        if candidate is None or deployment is None or model is None or price is None:
            raise ModelChanged("the model of the call is not deployed any more")
        if model.version != candidate.model_version:
            raise ModelChanged(f"model {candidate.model!r} was replaced during the call")
        url = deployment.urls[(activity.info().attempt - 1) % len(deployment.urls)]
        return candidate, Option(candidate.model, model, deployment, price, url)

    async def _restarted(self, call: CallInput, begun: Begun) -> Begun:
        return await journal.restart(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=_key(begun),
            epoch=begun.epoch,
            reason="cannot_resume",
        )

    async def _run(self, call: CallInput, spec: CallSpec, option: Option, begun: Begun) -> None:
        prompt = await prompt_of(self._deps, option, spec)
        screened, gate = await self._screening(call, spec)
        before = begun.text
        if gate is not None and not option.is_upstream:
            # What is on file is what passed; what the engine has said is in its token ids.
            gate.journaled(begun.text)
            tokenizer = await self._deps.tokenizers.of(option.model.name)
            stops = sampling_of(spec, prompt, tokenizer.stops).stop
            before = tokenizer.told(begun.generated_ids, stops)
        run: Run = (
            UpstreamRun(self._deps, option, spec)
            if option.is_upstream
            else TritonRun(
                self._deps,
                option,
                spec,
                # What was staged stands, whatever the template says today.
                dataclasses.replace(prompt, ids=begun.prompt_ids),
                request_id=begun.request_id,
                generated_ids=begun.generated_ids,
                generated_text=before,
            )
        )
        writer = LaneJournal(
            self._deps.db,
            call.tenant.organisation_id,
            _key(begun),
            begun.epoch,
            begun.next_seq,
        )
        answer = Answer()
        try:
            async with contextlib.aclosing(run.pieces()) as pieces:
                async for piece in pieces:
                    await _take(piece, answer, gate, writer)
                    if gate is not None and gate.blocked and piece.ended is None:
                        break
                    if piece.ended is not None:
                        await writer.stop()
                        kept = _Kept(answer, gate, screened)
                        await self._close(call, begun, writer, kept, piece.ended)
                        record_generation(
                            option.deployment.model,
                            piece.ended.usage,
                            piece.ended,
                            len(begun.generated_ids),
                        )
                        return
                else:
                    raise EngineUnavailable("the stream ended without its last piece", "incomplete")
            # The policy cut it off: closing the stream has stopped the engine.
            end = Ended(await run.used(), FILTERED, None, AttemptTimings())
            await writer.stop()
            await self._close(call, begun, writer, _Kept(answer, gate, screened), end)
        finally:
            await asyncio.shield(writer.stop())

    async def _screening(self, call: CallInput, spec: CallSpec) -> tuple[ScreenedCall, Gate | None]:
        """Return what screening made of the call when it was opened, and what its answer passes."""
        if not spec.policy:
            return ScreenedCall(), None
        organisation, screening = call.tenant.organisation_id, self._deps.screening
        policy = await screening.policies.version(organisation, spec.policy)
        redactions, _ = await screening.redactions(organisation, call.task_id)
        screened = ScreenedCall(spec.policy, policy, redactions)
        return screened, screened.gate(spec)

    async def _close(
        self, call: CallInput, begun: Begun, writer: LaneJournal, kept: _Kept, end: Ended
    ) -> None:
        await writer.settle_doubt()
        seq, ids, text = writer.rest()
        used = end.usage
        whole = AttemptUsage(
            prompt_tokens=len(begun.prompt_ids) or used.prompt_tokens,
            cached_tokens=used.cached_tokens,
            completion_tokens=len(begun.generated_ids) + used.completion_tokens,
            source=used.source,
            reasoning_tokens=used.reasoning_tokens,
        )
        await calls.close_call(
            self._deps.db,
            call.tenant.organisation_id,
            call.task_id,
            calls.Ending(
                generation_key=_key(begun),
                epoch=begun.epoch,
                outcome=kept.outcome,
                usage=used,
                seq=seq,
                token_ids=ids,
                text=text,
                timings=end.timings,
                decisions=kept.decisions(call.task_id),
                **kept.ending(end, whole),
            ),
            current_trace_id(),
        )
        record_task(kept.outcome)


@dataclass(frozen=True, slots=True)
class _Kept:
    """An answer as it is kept, and what was decided about it."""

    made: Answer
    gate: Gate | None
    screened: ScreenedCall

    @property
    def answer(self) -> Answer:
        """As the policy let it pass."""
        return self.made if self.gate is None else self.gate.kept

    @property
    def outcome(self) -> Literal["succeeded", "failed"]:
        """How the call ends: without a rule that the policy wants applied there is no answer."""
        return "succeeded" if self._unjudged is None else "failed"

    def ending(self, end: Ended, used: AttemptUsage) -> dict[str, Any]:
        """Return what is filed of that: the answer, or why there is none."""
        if self._unjudged is not None:
            error = failure_document(not_judged(self._unjudged))
            return {"error_code": "safety_unavailable", "error": error}
        return {
            "finish_reason": self.answer.finish_reason or end.finish_reason,
            "stop_reason": end.stop_reason,
            "answer": self.screened.marked(self.answer, self.said),
            "answer_usage": usage_document(used),
        }

    @property
    def _unjudged(self) -> str | None:
        return None if self.gate is None else self.gate.failed

    @property
    def said(self) -> str | None:
        """What whoever reads it again is told of the policy."""
        if self.gate is not None and self.gate.said is not None:
            return self.gate.said
        return "redact" if self.screened.redactions else None

    def decisions(self, task_id: UUID) -> tuple[Decision, ...]:
        """What is filed of it."""
        if self.gate is None:
            return ()
        made = self.gate.decision(task_id, self.screened.version, actor="overline")
        return (made,) if made else ()


async def _take(piece: Piece, answer: Answer, gate: Gate | None, writer: LaneJournal) -> None:
    """Take down a piece; at its end the whole is judged by what can be asked here: no model."""
    if gate is None:
        for delta in piece.deltas:
            answer.add(delta)
        writer.add(piece.token_ids, piece.text)
        return
    gate.take(piece.deltas, ended=piece.ended is not None)
    if gate.asks and (gate.blocked or piece.ended is not None):
        await gate.judged(None)
    writer.add(piece.token_ids, gate.journal())


def _key(begun: Begun) -> str:
    """Return which generation an attempt is one of: its request id says so."""
    return begun.request_id.rpartition("@")[0]


def _generate_input(
    call: CallInput, candidate: calls.BegunCandidate, option: Option
) -> GenerateInput:
    """Return what lost attempts are accounted for by."""
    return GenerateInput(
        tenant=call.tenant,
        task_id=call.task_id,
        step=1,
        call_key=f"{call.task_id}:1",
        generation_key=candidate.generation_key,
        chosen=Candidate(
            model=option.name,
            version=option.model.version,
            deployment=option.deployment.id,
            triton_model=option.engine_model,
            urls=tuple(option.deployment.urls),
            tokenizer_version=option.model.tokenizer_version,
            reason="its process died",
        ),
        turn=Turn(purpose="answer"),
        sampling=Sampling(),
        max_tokens=1,
    )
