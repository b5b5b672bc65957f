"""One model call: admit, look up and decide side by side → assemble → generate → settle.

The first three need nothing of each other, so nobody waits for them one by one. Nothing is
generated before all three have answered, and whatever happens after a call was admitted, it is
settled: a hold never outlives its call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

from pydantic import BaseModel
from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, is_cancelled_exception

from workflows.contracts import (
    Admission,
    ApprovalInput,
    AssembledPrompt,
    CacheAnswer,
    Candidate,
    Charge,
    ConcludeInput,
    Decision,
    Generated,
    Plan,
    SettleInput,
    TaskError,
    TaskStatus,
    Tenant,
    ToolCall,
    Turn,
    Usage,
)
from workflows.decisions import Decisions
from workflows.errors import (
    ContentBlocked,
    ContextTooLong,
    EngineBusy,
    EngineDenied,
    EngineDown,
    ModelChanged,
    OutputInvalid,
    RequestRefused,
)
from workflows.failures import describe
from workflows.layers import Layers
from workflows.output import MAX_REJECTIONS, no_answer_obeyed
from workflows.waiting import wait_out

__all__ = ["Answered", "ModelCall", "was_cancelled"]

# What failed with one of these on one candidate may succeed on the next.
_NEXT_CANDIDATE = frozenset(
    error.type() for error in (EngineDown, EngineBusy, EngineDenied, RequestRefused, ContextTooLong)
)

#: What stands in the place of a tool, where a person is asked about an answer.
ANSWER = "answer"

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
    """What a call gave, from the engine or from the cache.

    Attributes:
        held: The rule of the task's policy that wants a person asked about the tool calls.
        stopped: Why the task's policy ends it here, in words.
    """

    model: str
    cached: bool
    answer: str | None
    digest: str
    chars: int
    tool_calls: tuple[ToolCall, ...]
    usage: Usage
    charge: Charge
    invalid: str | None = None
    held: str | None = None
    stopped: str | None = None


class ModelCall:
    """The chain for one call of one step.

    Attributes:
        ended_task: The settlement of this call ended the task's row.
    """

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
        may_go_on: Callable[[int], bool],
        decisions: Decisions,
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
            may_go_on: Tells whether the task's limits leave room for a next step, after a call of
                so many tokens.
            decisions: Asks people, where the task's policy wants that.
        """
        self._layers = Layers(
            tenant=tenant, task_id=task_id, step=step, plan=plan, turn=turn, max_tokens=max_tokens
        )
        self._step = step
        self._plan = plan
        self._turn = turn
        self._digest = transcript_digest
        self._prompt_chars = prompt_chars
        self._out_of_time = out_of_time
        self._may_go_on = may_go_on
        self._decisions = decisions
        self._generation: str | None = None
        self.ended_task = False

    async def run(self) -> Answered:
        """Run the chain.

        Raises:
            ActivityError: A layer refused or failed; the call is settled and the task's row says
                so. If the call was not even admitted, there was nothing to settle.
            asyncio.CancelledError: The task was cancelled; what was made until then is settled.
        """
        admitting = self._layers.admit(self._prompt_chars)
        looking_up = self._layers.look_up(self._digest) if self._may_reuse() else None
        deciding = self._layers.decide(self._prompt_chars)
        try:
            admission = await admitting
        except BaseException:
            _forget(looking_up, deciding)
            raise
        settled = False
        try:
            found = await looking_up if looking_up is not None else CacheAnswer()
            if found.hit is not None:
                _forget(deciding)
                settled = True
                return await self._reuse(found)
            decision = await deciding
            prompt, generated, chosen = await self._generate(decision, admission)
            settled = True
            stopped = self._stopped(generated)
            charge = await self._settle_success(decision, prompt, generated, chosen, found, stopped)
            if generated.sealed is not None:
                # People take their time: by now the call holds neither money nor a place.
                generated = await self._released(prompt, generated)
                stopped = self._stopped(generated)
                charge = await self._conclude(generated, charge, stopped)
            return Answered(
                model=chosen.model,
                cached=False,
                answer=generated.answer,
                digest=generated.digest,
                chars=generated.chars,
                tool_calls=_chosen(generated),
                usage=generated.usage,
                charge=charge,
                invalid=generated.invalid,
                held=generated.screened.held if generated.screened else None,
                stopped=stopped.message if stopped else None,
            )
        except (ActivityError, ApplicationError, asyncio.CancelledError) as error:
            _forget(looking_up, deciding)
            if not settled:
                await self._settle_failure(error)
            raise

    def _may_reuse(self) -> bool:
        # A tool choice is always greedy, whatever the answer's temperature.
        sampled = self._turn.purpose == "answer" and self._plan.sampling.temperature > 0
        return self._plan.cache == "auto" and not sampled

    async def _generate(
        self, decision: Decision, admission: Admission
    ) -> tuple[AssembledPrompt, Generated, Candidate]:
        """Ask one candidate after the other; each has its own prompt and its own journal."""
        waiting = list(decision.candidates)
        for number in range(_MOST_CANDIDATES):
            if not waiting:
                break
            chosen, *waiting = waiting
            try:
                return await self._ask(chosen, number, admission, alone=len(waiting) == 0)
            except (ActivityError, asyncio.CancelledError) as error:
                kind = _kind(error)
                anew = kind == ModelChanged.type() and not was_cancelled(error)
                on = kind in _NEXT_CANDIDATE and bool(waiting) and not was_cancelled(error)
                if self._generation is not None:
                    # Nobody should wait for the next candidate while a broken engine is asked.
                    await self._account(chosen, self._generation, patient=not (anew or on))
                if anew:
                    waiting = list((await self._layers.decide(self._prompt_chars)).candidates)
                elif not on:
                    raise
        raise ApplicationError(
            f"no candidate of route {decision.route!r} answered",
            type=EngineDown.type(),
            non_retryable=True,
        )

    async def _ask(
        self, chosen: Candidate, number: int, admission: Admission, *, alone: bool
    ) -> tuple[AssembledPrompt, Generated, Candidate]:
        self._generation = None
        prompt = await self._layers.assemble(chosen, number)
        self._generation = prompt.generation_key
        generated = await self._layers.generate(chosen, prompt, admission, alone=alone)
        return prompt, generated, chosen

    async def _account(self, chosen: Candidate, generation_key: str, *, patient: bool) -> None:
        """Have the lost attempts of a given-up generation counted, if the engine can be asked."""
        counting = self._layers.account(chosen, generation_key, patient=patient)
        # If it fails, the journal's own count is settled, and marked as such.
        await wait_out(counting)

    async def _reuse(self, found: CacheAnswer) -> Answered:
        charge = await self._settle(
            SettleInput(
                **self._layers.common,
                outcome="cached",
                model=found.model,
                finish_reason=found.finish_reason,
                tool_call=found.tool_call,
                tool_calls=found.tool_calls,
                cache_hit=found.hit,
                finish=self._finish(),
                unless_told=self._may_go_on(0),
            ),
            f"answered by the cache, for nothing; {self._what(_chosen(found))}",
        )
        return Answered(
            model=found.model or "",
            cached=True,
            answer=found.answer,
            digest=found.digest,
            chars=found.chars,
            tool_calls=_chosen(found),
            usage=Usage(),
            charge=charge,
        )

    async def _settle_success(
        self,
        decision: Decision,
        prompt: AssembledPrompt,
        generated: Generated,
        chosen: Candidate,
        found: CacheAnswer,
        stopped: ContentBlocked | None,
    ) -> Charge:
        used = generated.usage
        said = self._what(_chosen(generated)) if stopped is None else stopped.message
        finish = TaskStatus.FAILED if stopped else self._finish(generated.invalid)
        if waits := generated.sealed is not None:
            said, finish = "a person is asked about the answer", None
        return await self._settle(
            SettleInput(
                **self._layers.common,
                outcome="succeeded",
                model=chosen.model,
                generation_key=prompt.generation_key,
                finish_reason=generated.finish_reason,
                tool_call=generated.tool_call,
                tool_calls=generated.tool_calls,
                decision=decision,
                # An answer that nobody may have is none to keep.
                cache_key=found.key if self._is_to_keep(generated, stopped) else None,
                collections=self._plan.collections,
                finish=finish,
                unless_told=self._may_go_on(used.prompt_tokens + used.completion_tokens),
                error=None if waits else self._error(stopped, generated.invalid),
            ),
            f"{chosen.model}: prompt {used.prompt_tokens} tokens, {used.completion_tokens} made, "
            + said,
        )

    def _is_to_keep(self, generated: Generated, stopped: ContentBlocked | None) -> bool:
        """Tell whether an answer may be another call's; what people look at is this one's."""
        asked = generated.sealed is not None or (
            generated.screened is not None and generated.screened.held is not None
        )
        return generated.invalid is None and stopped is None and not asked

    async def _released(self, prompt: AssembledPrompt, generated: Generated) -> Generated:
        """Return an answer that a rule holds back as a person lets it pass, or blocks it."""
        assert generated.screened is not None
        assert generated.sealed is not None
        rule = generated.screened.held or ""
        approval_id = f"{self._layers.common['call_key']}:{ANSWER}"

        async def look() -> Generated | None:
            return (await self._layers.release(prompt, generated, approval_id)).generated

        return await self._decisions.ask(
            ApprovalInput(
                **self._layers.common,
                call_id=approval_id,
                tool_call=ToolCall(
                    name=ANSWER, arguments={"rule": rule, "answer": generated.sealed}
                ),
            ),
            f"step {self._step} · rule {rule} asks whether the answer may be told",
            look,
        )

    async def _conclude(
        self, generated: Generated, charge: Charge, stopped: ContentBlocked | None
    ) -> Charge:
        """End the task, as the settlement of an answer does that nobody was asked about."""
        finish = TaskStatus.FAILED if stopped else self._finish(generated.invalid)
        if finish is None:
            return charge
        used = generated.usage
        ending = self._layers.conclude(
            ConcludeInput(
                **self._layers.common,
                finish=finish,
                error=self._error(stopped, generated.invalid),
                unless_told=self._may_go_on(used.prompt_tokens + used.completion_tokens),
            ),
            "the answer may be told" if stopped is None else stopped.message,
        )
        interrupted = await wait_out(ending)
        charge = charge.model_copy(update={"goes_on": ending.result().goes_on})
        self.ended_task = not charge.goes_on
        if interrupted is not None and not self.ended_task:
            raise interrupted
        return charge

    def _stopped(self, generated: Generated) -> ContentBlocked | None:
        """Tell why the task's policy ends it with this call, if it does."""
        screened = generated.screened
        if screened is None:
            return None
        what = "the answer" if self._turn.purpose == "answer" else "the tool's arguments"
        if screened.blocked is not None:
            return ContentBlocked(f"rule {screened.blocked!r} blocked {what}")
        return None

    def _error(self, stopped: ContentBlocked | None, invalid: str | None) -> TaskError | None:
        if stopped is None:
            return self._invalid(invalid)
        return TaskError(code=stopped.code, message=stopped.message, step=self._step)

    async def _settle_failure(self, error: BaseException) -> None:
        cancelled = was_cancelled(error)
        late = self._out_of_time() if workflow.cancellation_reason() is None else None
        if late is None and not cancelled:
            late = describe(error, step=self._step)
        await self._settle(
            SettleInput(
                **self._layers.common,
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
        running = self._layers.settle(settlement, summary)
        interrupted = await wait_out(running)
        charge = running.result()
        self.ended_task = settlement.finish is not None and not charge.goes_on
        # A call that ended its task was in time; any other one must not be followed by a next.
        if interrupted is not None and not self.ended_task:
            raise interrupted
        return charge

    def _finish(self, invalid: str | None = None) -> TaskStatus | None:
        """An answer ends its task, in the same statement that settles it; so does the last try."""
        if invalid is None:
            return TaskStatus.SUCCEEDED if self._turn.purpose == "answer" else None
        return None if self._tries_left() else TaskStatus.FAILED

    def _invalid(self, problem: str | None) -> TaskError | None:
        if problem is None or self._tries_left():
            return None
        return TaskError(
            code=OutputInvalid.code, message=no_answer_obeyed(problem), step=self._step
        )

    def _tries_left(self) -> bool:
        return len(self._turn.rejected) < MAX_REJECTIONS

    def _what(self, calls: tuple[ToolCall, ...]) -> str:
        if calls:
            return f"calls {', '.join(call.name for call in calls)}"
        return "no tools needed" if self._turn.purpose == "tool_call" else "answers"


def _chosen(said: Generated | CacheAnswer) -> tuple[ToolCall, ...]:
    """Return the tool calls of a turn, whether it may choose one or several."""
    return said.tool_calls or ((said.tool_call,) if said.tool_call else ())


def _forget(*handles: workflow.ActivityHandle[Any] | None) -> None:
    """Let go of activities whose results are of no use any more, failures included."""
    for handle in handles:
        if handle is not None:
            handle.cancel()
            handle.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
