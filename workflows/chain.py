"""One model call: admit → look up → decide → assemble → generate → settle.

Each arrow is an activity, known here by its name and its contract only. Whatever happens after a
call was admitted, it is settled: a hold never outlives its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows import policies
from workflows.contracts import (
    AccountInput,
    Admission,
    AdmitInput,
    AssembledPrompt,
    AssembleInput,
    CacheAnswer,
    Candidate,
    Charge,
    DecideInput,
    Decision,
    Generated,
    GenerateInput,
    LookUpInput,
    Plan,
    SettleInput,
    TaskError,
    TaskStatus,
    Tenant,
    ToolCall,
    Turn,
    Usage,
)
from workflows.errors import ContextTooLong, EngineDown, ModelChanged, RequestRefused
from workflows.failures import describe

__all__ = ["Answered", "ModelCall", "was_cancelled"]

Result = TypeVar("Result", bound=BaseModel | None)

# What failed with one of these on one candidate may succeed on the next.
_NEXT_CANDIDATE = frozenset({EngineDown.type(), RequestRefused.type(), ContextTooLong.type()})


# Fallbacks and changes of model within one call, together.
_MOST_CANDIDATES = 20


def _kind(error: BaseException) -> str | None:
    """Return the type of the failure inside an activity's error."""
    cause = error.cause if isinstance(error, ActivityError) else None
    return cause.type if isinstance(cause, ApplicationError) else None


def was_cancelled(error: BaseException) -> bool:
    """Tell whether the task was asked to end: what fails after that is not a failure of the task.

    An activity that waits for its own cancellation can fail in another way meanwhile.
    """
    return is_cancelled_exception(error) or workflow.cancellation_reason() is not None


class Answered(BaseModel):
    """What a call gave, from the engine or from the cache."""

    model: str
    cached: bool
    answer: str | None
    digest: str
    chars: int
    tool_call: ToolCall | None
    usage: Usage
    charge: Charge


class ModelCall:
    """The chain for one call of one step."""

    def __init__(
        self,
        *,
        tenant: Tenant,
        task_id: UUID,
        step: int,
        plan: Plan,
        turn: Turn,
        transcript_digest: str,
        prompt_chars: int,
        max_tokens: int,
        out_of_time: Callable[[], TaskError | None],
    ) -> None:
        """Describe the call; nothing happens until `run`.

        Args:
            tenant: Who pays.
            task_id: The task.
            step: Its step.
            plan: What steers its loop.
            turn: What this call is for.
            transcript_digest: Digest of the conversation before it.
            prompt_chars: Length of that, in characters.
            max_tokens: Longest answer, in tokens.
            out_of_time: Gives the task's error once its deadline has passed.
        """
        self._common = {
            "tenant": tenant,
            "task_id": task_id,
            "step": step,
            "call_key": f"{task_id}:{step}",
        }
        self._step = step
        self._plan = plan
        self._turn = turn
        self._digest = transcript_digest
        self._prompt_chars = prompt_chars
        self._max_tokens = max_tokens
        self._out_of_time = out_of_time
        self._generation: str | None = None
        self.ended_task = False

    async def run(self) -> Answered:
        """Run the chain.

        Raises:
            ActivityError: A layer refused or failed; the call is settled and the task's row says
                so. If the call was not even admitted, there was nothing to settle.
            asyncio.CancelledError: The task was cancelled; what was made until then is settled.
        """
        plan = self._plan
        await self._execute(
            "gateway.admit",
            AdmitInput(
                **self._common, route=plan.route, model=plan.model, max_tokens=self._max_tokens
            ),
            Admission,
            policies.LOOKUP,
            "may this call happen? hold its worst case",
        )
        settled = False
        try:
            found = await self._look_up()
            if found.hit is not None:
                settled = True
                return await self._settle_hit(found)
            decision = await self._decide()
            prompt, generated, chosen = await self._generate(decision)
            settled = True
            charge = await self._settle(
                SettleInput(
                    **self._common,
                    outcome="succeeded",
                    model=chosen.model,
                    generation_key=prompt.generation_key,
                    finish_reason=generated.finish_reason,
                    tool_call=generated.tool_call,
                    decision=decision,
                    parts=prompt.parts,
                    cache_key=found.key,
                    collections=plan.collections,
                    finish=TaskStatus.SUCCEEDED if self._turn.purpose == "answer" else None,
                ),
                f"{chosen.model}: prompt {generated.usage.prompt_tokens} tokens, "
                f"{generated.usage.completion_tokens} made, {self._what(generated.tool_call)}",
            )
            return Answered(
                model=chosen.model,
                cached=False,
                answer=generated.answer,
                digest=generated.digest,
                chars=generated.chars,
                tool_call=generated.tool_call,
                usage=generated.usage,
                charge=charge,
            )
        except (ActivityError, ApplicationError, asyncio.CancelledError) as error:
            if not settled:
                await self._settle_failure(error)
            raise

    async def _look_up(self) -> CacheAnswer:
        # A tool choice is always greedy, whatever the answer's temperature.
        sampled = self._turn.purpose == "answer" and self._plan.sampling.temperature > 0
        if self._plan.cache == "off" or sampled:
            return CacheAnswer()
        return await self._execute(
            "cache.look_up",
            LookUpInput(
                **self._common,
                plan=self._plan,
                turn=self._turn,
                transcript_digest=self._digest,
            ),
            CacheAnswer,
            policies.LOOKUP,
            "has this been answered already?",
        )

    async def _decide(self) -> Decision:
        return await self._execute(
            "router.decide",
            DecideInput(
                **self._common,
                route=self._plan.route,
                model=self._plan.model,
                turn=self._turn,
                prompt_chars=self._prompt_chars,
                max_tokens=self._max_tokens,
            ),
            Decision,
            policies.LOOKUP,
            f"which model answers on route {self._plan.route}?",
        )

    async def _generate(self, decision: Decision) -> tuple[AssembledPrompt, Generated, Candidate]:
        """Ask one candidate after the other; each has its own prompt and its own journal."""
        waiting = list(decision.candidates)
        for number in range(_MOST_CANDIDATES):
            if not waiting:
                break
            chosen, *waiting = waiting
            try:
                return await self._ask(chosen, number, alone=len(waiting) == 0)
            except (ActivityError, asyncio.CancelledError) as error:
                kind = _kind(error)
                anew = kind == ModelChanged.type() and not was_cancelled(error)
                on = kind in _NEXT_CANDIDATE and bool(waiting) and not was_cancelled(error)
                if self._generation is not None:
                    # Nobody should wait for the next candidate while a broken engine is asked.
                    await self._account(chosen, patient=not (anew or on))
                if anew:
                    waiting = list((await self._decide()).candidates)
                elif not on:
                    raise
        raise ApplicationError(
            f"no candidate of route {decision.route!r} answered",
            type=EngineDown.type(),
            non_retryable=True,
        )

    async def _ask(
        self, chosen: Candidate, number: int, *, alone: bool
    ) -> tuple[AssembledPrompt, Generated, Candidate]:
        self._generation = None
        prompt = await self._execute(
            "context.assemble",
            AssembleInput(
                **self._common,
                candidate=number,
                chosen=chosen,
                turn=self._turn,
                collections=self._plan.collections,
                passages=self._passages(),
                max_tokens=self._max_tokens,
            ),
            AssembledPrompt,
            policies.RETRIEVAL,
            f"{chosen.model}: what does the model see?",
        )
        self._generation = prompt.generation_key
        task = (
            f"choose among {', '.join(self._turn.tools)}"
            if self._turn.purpose == "tool_call"
            else f"answer in {prompt.max_tokens} at most"
        )
        generated = await self._execute(
            "generation.generate",
            GenerateInput(
                **self._common,
                generation_key=prompt.generation_key,
                chosen=chosen,
                turn=self._turn,
                sampling=self._plan.sampling,
                max_tokens=prompt.max_tokens,
            ),
            Generated,
            policies.GENERATE if alone else policies.GENERATE_WITH_FALLBACK,
            f"{chosen.model}: prompt {prompt.prompt_tokens} tokens, {task}",
        )
        return prompt, generated, chosen

    async def _account(self, chosen: Candidate, *, patient: bool) -> None:
        """Have the lost attempts of a given-up generation counted, if the engine can be asked."""
        assert self._generation is not None
        counting = self._start(
            "generation.account",
            AccountInput(
                **self._common,
                generation_key=self._generation,
                triton_model=chosen.triton_model,
                patient=patient,
            ),
            type(None),
            policies.ACCOUNT,
            "count what the given-up generation made",
        )
        while not counting.done():
            try:
                await asyncio.shield(counting)
            except asyncio.CancelledError:
                continue
            except ActivityError:
                # The journal's own count is settled then, and marked as such.
                return

    async def _settle_hit(self, found: CacheAnswer) -> Answered:
        charge = await self._settle(
            SettleInput(
                **self._common,
                outcome="cached",
                model=found.model,
                finish_reason=found.finish_reason,
                tool_call=found.tool_call,
                cache_hit=found.hit,
                finish=TaskStatus.SUCCEEDED if self._turn.purpose == "answer" else None,
            ),
            f"answered by the cache, for nothing; {self._what(found.tool_call)}",
        )
        return Answered(
            model=found.model or "",
            cached=True,
            answer=found.answer,
            digest=found.digest,
            chars=found.chars,
            tool_call=found.tool_call,
            usage=Usage(),
            charge=charge,
        )

    async def _settle_failure(self, error: BaseException) -> None:
        cancelled = was_cancelled(error)
        late = self._out_of_time() if workflow.cancellation_reason() is None else None
        if late is None and not cancelled:
            late = describe(error, step=self._step)
        await self._settle(
            SettleInput(
                **self._common,
                outcome="cancelled" if cancelled else "failed",
                # What a cancelled call had shown is paid for; what failed is waste.
                generation_key=self._generation if cancelled else None,
                error=late,
                finish=TaskStatus.FAILED if late else TaskStatus.CANCELLED,
            ),
            "cancelled: pay for what was made" if cancelled else "failed: pay for what was made",
        )

    async def _settle(self, settlement: SettleInput, summary: str) -> Charge:
        """Settle, even while the task is being cancelled: the workflow must not end before."""
        running = self._start("gateway.settle", settlement, Charge, policies.MONEY, summary)
        interrupted: asyncio.CancelledError | None = None
        while not running.done():
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError as error:
                interrupted = error
        charge = running.result()
        self.ended_task = settlement.finish is not None
        # A call that ended its task was in time; any other one must not be followed by a next.
        if interrupted is not None and settlement.finish is None:
            raise interrupted
        return charge

    async def _execute(
        self,
        activity: str,
        argument: BaseModel,
        result: type[Result],
        options: policies.Options,
        summary: str,
    ) -> Result:
        return await self._start(activity, argument, result, options, summary)

    def _start(
        self,
        activity: str,
        argument: BaseModel,
        result: type[Result],
        options: policies.Options,
        summary: str,
    ) -> workflow.ActivityHandle[Result]:
        """Start one layer, with a line in plain words for the Web UI."""
        return workflow.start_activity(
            activity,
            argument,
            result_type=result,
            # Temporal refuses a summary of more than 400 bytes.
            summary=f"step {self._step} · {summary}"[:180],
            **options,
        )

    def _passages(self) -> int:
        """An answer draws on retrieval, unless the agent searches by itself."""
        searches = any(tool.name == "search" for tool in self._plan.tools)
        return self._plan.passages if self._turn.purpose == "answer" and not searches else 0

    def _what(self, tool_call: ToolCall | None) -> str:
        if tool_call is not None:
            return f"calls {tool_call.name}"
        return "no tools needed" if self._turn.purpose == "tool_call" else "answers"
