"""The model call itself: dispatch token ids, journal what comes back, continue after a crash."""

from __future__ import annotations

import asyncio
import contextlib

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.generated import generated_of
from activities.heartbeats import heartbeats
from activities.journaling import Ended, JournalWriter
from activities.lost_attempts import LostAttempts, reading_after_end
from activities.outgoing import BLOCKED, Outgoing
from activities.screening import Outcome, outcome_before, outcome_of, outgoing_of
from activities.toolbox import Registered, choice_grammar
from activities.upstream_generation import UpstreamGeneration
from inference.errors import EngineError, EngineUnavailable, RequestRefused
from inference.messages import Final, GenerationRequest, Timings
from inference.prompt import Sampling as EngineSampling
from observability import genai
from observability.metrics import record_generation, record_interruption
from observability.spans import current_trace_id, identify, trace_carrier
from store import journal, tasks
from store.journal import AttemptUsage, Begun
from workflows.contracts import AccountInput, Generated, GenerateInput, Usage
from workflows.errors import ModelChanged

__all__ = ["Generation"]

# Longest silence of a stream, prefill of a full window on a slow processor included.
IDLE_SECONDS = 60.0
DEADLINE_SECONDS = 3_500.0


class Generation:
    """Generates, and never twice what the journal already holds."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        self._lost = LostAttempts(deps)
        self._elsewhere = UpstreamGeneration(deps, self._lost)

    @activity.defn(name="generation.generate")
    @typed_failures
    async def generate(self, call: GenerateInput) -> Generated:
        """Generate from a staged prompt, continuing where the journal ends.

        Raises:
            ApplicationError: `EngineDown` (retried, and continued), `RequestRefused` (not).
            asyncio.CancelledError: The task was cancelled; what was made is accounted for.
        """
        if call.chosen.engine == "openai":
            return await self._elsewhere.generate(call, await self._schema(call))
        attempt = activity.info().attempt
        # Tasks are spread; a task's calls keep to one replica, which has read what they begin with.
        # Another one on every retry: the last one may be what broke.
        urls = call.chosen.urls
        replica = urls[(call.task_id.int + attempt - 1) % len(urls)]
        begun = await journal.begin_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=call.generation_key,
            replica=replica,
            temporal_attempt=attempt,
            trace_id=current_trace_id(),
        )
        await self._require_same_model(call, begun)
        schema = await self._schema(call)
        async with heartbeats(), self._lost.resolving(call, begun):
            if begun.finished is not None:
                # It was finished; only the news of it was lost.
                ended = Ended(
                    text=begun.text,
                    completion_tokens=begun.finished.completion_tokens,
                    cached_tokens=begun.finished.cached_tokens,
                    finish_reason=begun.finished.finish_reason or "stop",
                )
                outcome = await outcome_before(self._deps, call, begun.epoch)
                return await self._result(call, begun, ended, schema, None, outcome)
            try:
                return await self._run(call, begun, replica, schema)
            except RequestRefused as error:
                if error.code != "cannot_resume":
                    raise
                # The engine cannot take up the state that the journal ends in: begin again, and
                # say so, to the reader of the stream and in the ledger.
                fresh = await journal.restart(
                    self._deps.db,
                    organisation_id=call.tenant.organisation_id,
                    generation_key=call.generation_key,
                    epoch=begun.epoch,
                    reason=error.code,
                )
                return await self._run(call, fresh, replica, schema)

    @activity.defn(name="generation.account")
    @typed_failures
    async def account(self, call: AccountInput) -> None:
        """Count what a given-up generation's attempts produced, before its call is settled."""
        await self._lost.account(call)

    async def _require_same_model(self, call: GenerateInput, begun: Begun) -> None:
        """Token ids are never read with another tokenizer than the one that wrote them.

        Raises:
            ModelChanged: The model was replaced since the prompt was staged.
        """
        tokenizer = await self._deps.tokenizers.of(call.chosen.model)
        model = (await self._deps.catalogue.read()).models.get(call.chosen.model)
        if (
            model is None
            or model.version != begun.model_version
            or tokenizer.version != begun.tokenizer_version
        ):
            raise ModelChanged(f"model {call.chosen.model!r} was replaced during the call")

    async def _schema(self, call: GenerateInput) -> str | None:
        """Return the text of the schema that the answer must obey, if there is one."""
        if call.output is None:
            return None
        return await tasks.load_output_schema(
            self._deps.db, call.tenant.organisation_id, call.task_id
        )

    async def _run(
        self, call: GenerateInput, begun: Begun, replica: str, schema: str | None
    ) -> Generated:
        writer = JournalWriter(self._deps.db, call, begun)
        request = await self._request(call, begun, schema)
        outgoing = await self._outgoing(call, begun, request, writer)
        with genai.model_call_span(call.chosen.model, server=replica) as span:
            genai.set_request(
                span,
                model=call.chosen.model,
                max_tokens=call.max_tokens,
                temperature=call.sampling.temperature,
                top_p=call.sampling.top_p,
                top_k=call.sampling.top_k,
                output_type=(
                    "json" if call.turn.purpose == "tool_call" or schema is not None else "text"
                ),
                conversation_id=str(call.task_id),
                resumed_tokens=len(begun.generated_ids),
            )
            identify(span, call_key=call.call_key, epoch=begun.epoch)
            try:
                final = await self._stream(replica, request, writer, outgoing)
            except asyncio.CancelledError:
                record_interruption(call.chosen.model, "cancelled")
                await asyncio.shield(self._interrupted(call, begun, replica, writer))
                raise
            except EngineError as error:
                await writer.flush()
                if isinstance(error, RequestRefused) and error.code != "cannot_resume":
                    await self._refused(call, begun, error)
                record_interruption(call.chosen.model, "failed")
                genai.set_error(span, error.code)
                raise
            usage = AttemptUsage(
                prompt_tokens=final.prompt_tokens,
                cached_tokens=final.cached_tokens,
                completion_tokens=final.completion_tokens,
                source="engine",
            )
            outcome = await outcome_of(self._deps, call, outgoing, begun.epoch)
            writer.add([], outcome.passes)
            ended = await writer.finish(
                usage, final.finish_reason, final.stop_reason, final.timings, outcome.decision
            )
            genai.set_response(
                span,
                model=call.chosen.model,
                finish_reason=final.finish_reason,
                response_id=begun.request_id,
                input_tokens=final.prompt_tokens,
                output_tokens=final.completion_tokens,
                cached_tokens=final.cached_tokens,
                queue_ms=final.timings.queue_ms,
                first_token_ms=final.timings.first_token_ms,
                total_ms=final.timings.total_ms,
            )
            genai.set_content(
                span,
                trace_prompts=self._deps.settings.trace_prompts,
                answer=ended.text,
                finish_reason=final.finish_reason,
            )
        record_generation(call.chosen.model, usage, final.timings, len(begun.generated_ids))
        return await self._result(call, begun, ended, schema, final.timings, outcome)

    async def _outgoing(
        self, call: GenerateInput, begun: Begun, request: GenerationRequest, writer: JournalWriter
    ) -> Outgoing:
        """Return what the words pass through, with those of the earlier attempts behind it."""
        outgoing = await outgoing_of(self._deps, call, begun.text)
        if call.safety is not None and begun.generated_ids:
            tokenizer = await self._deps.tokenizers.of(call.chosen.model)
            before = tokenizer.told(begun.generated_ids, request.sampling.stop)
            writer.add([], outgoing.feed(before))
        return outgoing

    async def _stream(
        self, replica: str, request: GenerationRequest, writer: JournalWriter, outgoing: Outgoing
    ) -> Final:
        """Read the engine's stream into the journal, while there is more and it may pass."""
        if outgoing.closed():
            # An earlier attempt came as far as here; this one has asked for nothing.
            return Final(BLOCKED, None, 0, 0, 0, Timings(0.0, 0.0, 0.0))
        client = self._deps.engines.at(replica)
        async with writer:
            async with contextlib.aclosing(client.generate(request)) as stream:
                async for chunk in stream:
                    writer.add(chunk.token_ids, outgoing.feed(chunk.text))
                    if chunk.final is not None:
                        return chunk.final
                    if outgoing.closed():
                        break
                else:
                    raise EngineUnavailable("the stream ended without its last chunk", "incomplete")
            # Closing the stream has freed the engine's slot; it tells what it made until then.
            reading = await reading_after_end(client, request.triton_model, request.request_id)
        if reading is None:
            raise EngineUnavailable("the engine knows nothing of the request", "incomplete")
        return Final(
            BLOCKED,
            None,
            reading.prompt_tokens,
            reading.completion_tokens,
            reading.cached_tokens,
            Timings(0.0, 0.0, 0.0),
        )

    async def _interrupted(
        self, call: GenerateInput, begun: Begun, replica: str, writer: JournalWriter
    ) -> None:
        """Account for a generation that was cancelled, by the engine's own count."""
        await writer.flush()
        details = activity.cancellation_details()
        if details is None or not (details.cancel_requested or details.not_found):
            # A worker that stops, or an attempt that timed out: another one will continue.
            return
        # An engine that cannot be asked is asked again by `account`.
        with contextlib.suppress(EngineError):
            reading = await reading_after_end(
                self._deps.engines.at(replica), call.chosen.triton_model, begun.request_id
            )
            if reading is not None and reading.state != "running":
                await writer.cancelled(reading)

    async def _refused(self, call: GenerateInput, begun: Begun, error: RequestRefused) -> None:
        """Say that the engine did nothing for this attempt, so that nobody has to ask it."""
        await journal.resolve_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=call.generation_key,
            epoch=begun.epoch,
            usage=AttemptUsage(
                prompt_tokens=0, cached_tokens=0, completion_tokens=0, source="engine"
            ),
            outcome="failed",
            error_code=error.code,
        )

    async def _request(
        self, call: GenerateInput, begun: Begun, schema: str | None
    ) -> GenerationRequest:
        sampling, choosing = call.sampling, call.turn.purpose == "tool_call"
        held = schema is not None and call.chosen.constrained
        # What a grammar binds ends where the grammar does.
        bound = choosing or held
        tokenizer = await self._deps.tokenizers.of(call.chosen.model)
        return GenerationRequest(
            triton_model=call.chosen.triton_model,
            request_id=begun.request_id,
            input_ids=begun.prompt_ids,
            generated_ids=begun.generated_ids,
            sampling=EngineSampling(
                max_tokens=call.max_tokens,
                min_tokens=0 if bound else sampling.min_tokens,
                temperature=0.0 if choosing else sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                seed=sampling.seed,
                repetition_penalty=1.0 if choosing else sampling.repetition_penalty,
                presence_penalty=0.0 if choosing else sampling.presence_penalty,
                frequency_penalty=0.0 if choosing else sampling.frequency_penalty,
                # A model without chat training ends its turn with the template's own words.
                stop=() if bound else (*sampling.stop, *tokenizer.stops),
                ignore_eos=False if bound else sampling.ignore_eos,
            ),
            json_schema=schema if held else None,
            grammar=(
                choice_grammar(
                    call.turn.tools,
                    may_answer=call.turn.may_answer,
                    registered=await self._registered(call),
                    parallel=call.turn.parallel,
                )
                if choosing
                else None
            ),
            deadline_s=DEADLINE_SECONDS,
            idle_s=IDLE_SECONDS,
            metadata=trace_carrier(),
        )

    async def _registered(self, call: GenerateInput) -> Registered:
        return await self._deps.definitions.of(call.tenant.organisation_id, call.turn)

    async def _result(
        self,
        call: GenerateInput,
        begun: Begun,
        ended: Ended,
        schema: str | None,
        timings: Timings | None,
        outcome: Outcome,
    ) -> Generated:
        return await generated_of(
            self._deps,
            call,
            text=ended.text,
            finish_reason=ended.finish_reason,
            usage=Usage(
                prompt_tokens=len(begun.prompt_ids),
                completion_tokens=ended.completion_tokens,
                cached_tokens=ended.cached_tokens,
            ),
            schema=schema,
            epoch=begun.epoch,
            resumed_tokens=len(begun.generated_ids),
            timings=timings,
            outcome=outcome,
        )
