"""The model call at an upstream: messages go out, text comes back, and nothing can be continued.

An attempt that broke off after its first words is made again from the beginning: its readers get a
`reset`, and what it had used stands in the ledger as waste. One that was refused before them goes
to the next candidate at once, if there is one.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.dependencies import Dependencies
from activities.generated import attempt_usage, generated_of
from activities.heartbeats import heartbeats
from activities.journaling import JournalWriter
from activities.lost_attempts import LostAttempts
from activities.outgoing import BLOCKED, Outgoing
from activities.screening import outcome_before, outcome_of, outgoing_of
from activities.upstream_prompt import choice_text, parameters_of
from inference.errors import EngineError, EngineUnavailable
from inference.messages import Timings
from inference.upstream.messages import ChatFinal, ChatRequest, ChatTimings, ToolPiece
from inference.upstream.options import options_of
from inference.usage import TokenUsage
from observability import genai
from observability.metrics import record_generation, record_interruption
from observability.spans import current_trace_id, identify, trace_carrier
from store import journal
from store.catalogue import Deployment
from store.journal import Begun
from workflows.contracts import Generated, GenerateInput, Usage
from workflows.errors import EngineDown, ModelChanged

if TYPE_CHECKING:
    from inference.upstream.client import UpstreamClient
    from inference.upstream.stream import ChatStream

__all__ = ["UpstreamGeneration"]

# Attempts that may break off after their first words: each is paid for, to the end it had.
MOST_BROKEN_OFF = 3
# Failures that tell that the upstream never worked on the request.
_NOT_BEGUN = frozenset({"not_ready", "busy", "denied", "unknown_model", "unpaid", "moved"})


class UpstreamGeneration:
    """Generates at engines that speak OpenAI's protocol."""

    def __init__(self, deps: Dependencies, lost: LostAttempts) -> None:
        self._deps = deps
        self._lost = lost

    async def generate(self, call: GenerateInput, schema: str | None) -> Generated:
        """Generate from a staged request; see `activities.generation.Generation.generate`."""
        catalogue = await self._deps.catalogue.read()
        deployment = catalogue.deployments[call.chosen.deployment]
        attempt = activity.info().attempt
        url = call.chosen.urls[(attempt - 1) % len(call.chosen.urls)]
        begun = await journal.begin_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=call.generation_key,
            replica=url,
            temporal_attempt=attempt,
            trace_id=current_trace_id(),
        )
        model = catalogue.find(call.chosen.model)
        if model is None or model.version != begun.model_version:
            raise ModelChanged(f"model {call.chosen.model!r} was replaced during the call")
        async with heartbeats(), self._lost.resolving(call, begun):
            if begun.finished is not None:
                # It was finished; only the news of it was lost.
                return await self._known(call, begun, schema)
            if begun.text:
                begun = await journal.restart(
                    self._deps.db,
                    organisation_id=call.tenant.organisation_id,
                    generation_key=call.generation_key,
                    epoch=begun.epoch,
                    reason="cannot_resume",
                )
            return await self._run(call, begun, deployment, url, schema)

    async def _run(
        self,
        call: GenerateInput,
        begun: Begun,
        deployment: Deployment,
        url: str,
        schema: str | None,
    ) -> Generated:
        writer = JournalWriter(self._deps.db, call, begun)
        outgoing = await outgoing_of(self._deps, call)
        name = call.chosen.model
        with genai.model_call_span(
            name, "chat", server=urlsplit(url).netloc, provider=genai.UPSTREAM_PROVIDER
        ) as span:
            genai.set_request(
                span,
                model=name,
                operation="chat",
                max_tokens=call.max_tokens,
                temperature=call.sampling.temperature,
                top_p=call.sampling.top_p,
                output_type=(
                    "json" if call.turn.purpose == "tool_call" or schema is not None else "text"
                ),
                conversation_id=str(call.task_id),
                provider=genai.UPSTREAM_PROVIDER,
            )
            identify(span, call_key=call.call_key, epoch=begun.epoch)
            stream: ChatStream | None = None
            try:
                client = await self._deps.upstream(deployment, url)
                stream = client.stream(await self._request(call, deployment, schema))
                final = await self._read(call, client, stream, writer, outgoing)
            except asyncio.CancelledError:
                record_interruption(deployment.model, "cancelled")
                await asyncio.shield(self._interrupted(stream, writer))
                raise
            except EngineError as error:
                await writer.flush()
                await self._failed(call, begun, error)
                record_interruption(deployment.model, "failed")
                genai.set_error(span, error.code)
                if self._is_last_here(call, begun, error):
                    raise ApplicationError(
                        str(error), type=EngineDown.type(), non_retryable=True
                    ) from error
                raise
            timings = Timings(0.0, final.timings.first_token_ms, final.timings.total_ms)
            usage = attempt_usage(final.usage)
            outcome = await outcome_of(self._deps, call, outgoing, begun.epoch)
            writer.add([], outcome.passes)
            ended = await writer.finish(usage, final.finish_reason, None, timings, outcome.decision)
            genai.set_response(
                span,
                model=final.model or name,
                finish_reason=final.finish_reason,
                response_id=final.response_id,
                input_tokens=usage.prompt_tokens,
                output_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                first_token_ms=timings.first_token_ms,
                total_ms=timings.total_ms,
            )
            genai.set_content(
                span,
                trace_prompts=self._deps.settings.trace_prompts,
                answer=ended.text,
                finish_reason=final.finish_reason,
            )
        record_generation(deployment.model, usage, timings)
        return await generated_of(
            self._deps,
            call,
            text=ended.text,
            finish_reason=final.finish_reason,
            usage=Usage(
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
            ),
            schema=schema,
            epoch=begun.epoch,
            timings=timings,
            outcome=outcome,
        )

    async def _request(
        self, call: GenerateInput, deployment: Deployment, schema: str | None
    ) -> ChatRequest:
        staged = await journal.staged_request(
            self._deps.db, call.tenant.organisation_id, call.generation_key
        )
        said: dict[str, Any] = json.loads(staged.request)
        options = options_of(deployment.options)
        return ChatRequest(
            model=call.chosen.triton_model,
            messages=said["messages"],
            parameters=parameters_of(call, options, said["tools"], schema),
            headers=trace_carrier(),
            first_byte_s=options.first_byte_s,
            idle_s=options.idle_s,
        )

    async def _read(
        self,
        call: GenerateInput,
        client: UpstreamClient,
        stream: ChatStream,
        writer: JournalWriter,
        outgoing: Outgoing,
    ) -> ChatFinal:
        """Read the stream into the journal, to its end or until no more of it may pass.

        A choice among tools goes there when it is whole.
        """
        choosing = call.turn.purpose == "tool_call"
        pieces: list[ToolPiece] = []
        async with writer, stream:
            async for chunk in stream:
                for delta in chunk.deltas:
                    if choosing:
                        pieces.extend(delta.tool_calls)
                    elif delta.text or delta.refusal:
                        # A refusal is the answer where there is no other.
                        writer.add([], outgoing.feed(delta.text or delta.refusal))
                if chunk.final is not None:
                    if choosing:
                        writer.add([], outgoing.feed(choice_text(call.turn, pieces)))
                    return chunk.final
                if outgoing.closed():
                    return ChatFinal(BLOCKED, stream.usage, ChatTimings(0.0, 0.0))
        raise EngineUnavailable(
            f"the stream of {client.upstream.name!r} ended without its last chunk", "incomplete"
        )

    async def _interrupted(self, stream: ChatStream | None, writer: JournalWriter) -> None:
        """Account for a generation that was cancelled; its connection is closed already."""
        await writer.flush()
        details = activity.cancellation_details()
        if details is None or not (details.cancel_requested or details.not_found):
            # A worker that stops, or an attempt that timed out: another one will begin again.
            return
        await writer.ended_early(attempt_usage(stream.usage if stream else TokenUsage()))

    async def _failed(self, call: GenerateInput, begun: Begun, error: EngineError) -> None:
        """Write down what the attempt had used when it failed."""
        status = error.told.status if error.told else None
        nothing = error.code in _NOT_BEGUN or (status is not None and not error.sent)
        used = TokenUsage() if nothing or error.usage is None else error.usage
        await journal.resolve_attempt(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            generation_key=call.generation_key,
            epoch=begun.epoch,
            usage=attempt_usage(used),
            outcome="failed",
            error_code=error.code,
        )

    def _is_last_here(self, call: GenerateInput, begun: Begun, error: EngineError) -> bool:
        """Tell whether what another attempt might mend is not tried again with this model."""
        broken_off = error.sent and begun.epoch >= 2 * MOST_BROKEN_OFF - 1
        elsewhere = call.has_next and not error.sent
        return error.retryable and (broken_off or elsewhere)

    async def _known(self, call: GenerateInput, begun: Begun, schema: str | None) -> Generated:
        assert begun.finished is not None
        staged = await journal.staged_request(
            self._deps.db, call.tenant.organisation_id, call.generation_key
        )
        return await generated_of(
            self._deps,
            call,
            text=begun.text,
            finish_reason=begun.finished.finish_reason,
            usage=Usage(
                prompt_tokens=staged.prompt_tokens,
                completion_tokens=begun.finished.completion_tokens,
                cached_tokens=begun.finished.cached_tokens,
            ),
            schema=schema,
            epoch=begun.epoch,
            outcome=await outcome_before(self._deps, call, begun.epoch),
        )
