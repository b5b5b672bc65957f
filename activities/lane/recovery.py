"""Calls whose process died: gone on with from the journal, or ended by what is known of them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.heartbeats import heartbeats
from activities.lane.asking import prompt_of
from activities.lane.journal import LaneJournal
from activities.lane.live import usage_document
from activities.lane.options import Option
from activities.lane.runs import Ended, Run, TritonRun, UpstreamRun
from activities.lost_attempts import LostAttempts
from inference.answers import Answer
from inference.errors import EngineUnavailable, RequestRefused
from observability.metrics import record_generation, record_task
from observability.spans import current_trace_id
from store import calls, journal
from store.journal import AttemptUsage, Begun
from workflows.contracts import AccountInput, Candidate, GenerateInput, Sampling, Turn
from workflows.contracts.call import CallEnd, CallInput, CallSpec
from workflows.errors import ModelChanged

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
        urls = option.deployment.urls
        attempt = activity.info().attempt
        replica = urls[(attempt - 1) % len(urls)]
        begun = await journal.begin_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=candidate.generation_key,
            replica=replica,
            temporal_attempt=attempt,
            trace_id=current_trace_id(),
        )
        generate = _generate_input(call, candidate, option)
        async with heartbeats(), self._lost.resolving(generate, begun):
            if option.is_upstream and begun.text:
                begun = await self._restarted(call, begun)
            try:
                await self._run(call, spec, option, begun, replica)
            except RequestRefused as error:
                if error.code != "cannot_resume":
                    raise
                await self._run(call, spec, option, await self._restarted(call, begun), replica)

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
        """Return what was asked last, as the catalogue has it today.

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
        return candidate, Option(candidate.model, model, deployment, price)

    async def _restarted(self, call: CallInput, begun: Begun) -> Begun:
        return await journal.restart(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=_key(begun),
            epoch=begun.epoch,
            reason="cannot_resume",
        )

    async def _run(
        self, call: CallInput, spec: CallSpec, option: Option, begun: Begun, replica: str
    ) -> None:
        prompt = await prompt_of(self._deps, option, spec)
        run: Run = (
            UpstreamRun(self._deps, option, spec, url=replica)
            if option.is_upstream
            else TritonRun(
                self._deps,
                option,
                spec,
                # What was staged stands, whatever the template says today.
                dataclasses.replace(prompt, ids=begun.prompt_ids),
                url=replica,
                request_id=begun.request_id,
                generated_ids=begun.generated_ids,
                generated_text=begun.text,
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
                    for delta in piece.deltas:
                        answer.add(delta)
                    writer.add(piece.token_ids, piece.text)
                    if piece.ended is not None:
                        await writer.stop()
                        await self._close(call, begun, writer, answer, piece.ended)
                        record_generation(
                            option.deployment.model,
                            piece.ended.usage,
                            _Times(piece.ended),
                            len(begun.generated_ids),
                        )
                        return
        finally:
            await asyncio.shield(writer.stop())
        raise EngineUnavailable("the stream ended without its last piece", "incomplete")

    async def _close(
        self, call: CallInput, begun: Begun, writer: LaneJournal, answer: Answer, end: Ended
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
                outcome="succeeded",
                usage=used,
                seq=seq,
                token_ids=ids,
                text=text,
                finish_reason=answer.finish_reason or end.finish_reason,
                stop_reason=end.stop_reason,
                timings=end.timings,
                answer=answer.document(),
                answer_usage=usage_document(whole),
            ),
            current_trace_id(),
        )
        record_task("succeeded")


def _key(begun: Begun) -> str:
    """Return which generation an attempt is one of: its request id says so."""
    return begun.request_id.rpartition("@")[0]


class _Times:
    """An attempt's times, as the metrics read them."""

    def __init__(self, end: Ended) -> None:
        self.first_token_ms = end.timings.first_token_ms
        self.total_ms = end.timings.duration_ms


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
