"""One call, from its first piece to its end: made here, written down, closed once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, ClassVar, Protocol
from uuid import UUID

from activities.dependencies import Dependencies
from activities.generated import attempt_usage
from activities.judging import Ask
from activities.lane.asking import Prompt, prompt_of
from activities.lane.closing import Closing, failure_document, unanswered
from activities.lane.gate import FILTERED
from activities.lane.journal import LaneJournal
from activities.lane.options import Option
from activities.lane.runs import Ended, Piece, Run, TritonRun, UpstreamRun
from activities.lane.screening import ScreenedCall
from activities.lane.traced import CallSpan
from activities.lane.usages import told_usage, usage_document
from inference.answers import Answer
from inference.errors import EngineError, EngineUnavailable, RequestRefused
from inference.upstream.messages import Delta
from inference.usage import TokenUsage
from observability.metrics import (
    record_generation,
    record_interruption,
    record_settlement,
    record_task,
)
from observability.spans import current_trace_id
from store import calls
from store.catalogue import Deployment
from store.journal import AttemptUsage
from workflows.contracts.call import CallSpec
from workflows.errors import OverlineError
from workflows.screening import not_judged

__all__ = ["LiveCall", "staged"]

# Failures that tell that the engine never worked on the request.
_NOT_BEGUN = frozenset({"not_ready", "busy", "denied", "unknown_model", "unpaid", "moved"})
NOT_SCREENED = ScreenedCall()


def staged(option: Option, prompt: Prompt) -> calls.Staged:
    """Return how a candidate is filed."""
    return calls.Staged(
        model=option.name,
        model_version=option.model.version,
        tokenizer_version=option.model.tokenizer_version,
        deployment=option.deployment.id,
        replica=option.url,
        prompt_ids=prompt.ids,
        likely_prompt=prompt.likely,
    )


class EndedCall(Protocol):
    """Is told of a call's end, and whether it could be written down."""

    def __call__(self, call: LiveCall, *, closed: bool) -> None: ...


@dataclass
class LiveCall:
    """A call that this process makes.

    Attributes:
        task_id: Its task.
        model: Who answers, once `begin` is over.
        screened: What screening made of its texts.
        ask: Has a model judge the answer; None where none is to be asked.
        answer: What was made so far, as its caller is shown it.
        used: What its caller is told of tokens; whole after the last piece.
        billed_usd: What it cost, after the last piece.
    """

    deps: Dependencies
    spec: CallSpec
    options: Sequence[Option]
    prompt: Prompt
    organisation_id: UUID
    task_id: UUID
    created_at: datetime
    cache_key: str | None
    ended: EndedCall
    rate: Mapping[str, Any] | None = None
    screened: ScreenedCall = NOT_SCREENED
    ask: Ask | None = None
    actor: str = "overline"
    cache = "miss"
    replayed = False
    ended_at: ClassVar[datetime | None] = None

    def __post_init__(self) -> None:
        self._gate = self.screened.gate(self.spec)
        # What is kept and what is shown are the same where nothing stands between.
        self.answer = self._gate.shown if self._gate is not None else Answer()
        self.used = TokenUsage()
        self.billed_usd = Decimal(0)
        self.saved_usd = Decimal(0)
        # Who reads it; cancelled when somebody else wants the call to end.
        self.reader = asyncio.current_task()
        self._number = 0
        self._trace_id = current_trace_id()
        self._closing = Closing(self.deps.db, self.organisation_id, self.task_id, self._trace_id)
        self._first: tuple[Piece, tuple[Delta, ...]] | None = None
        self._start()

    @property
    def over(self) -> asyncio.Event:
        """Set when it is closed, or could not be."""
        return self._closing.over

    @property
    def option(self) -> Option:
        """The candidate that is asked."""
        return self.options[self._number]

    @property
    def model(self) -> str:
        """The name of who answers."""
        return self.option.name

    @property
    def attempts(self) -> int:
        """How many engines were asked: each once."""
        return self._number + 1

    @property
    def safety(self) -> str | None:
        """What its caller is told of its policy: `flag`, `redact` or `dry_run`."""
        before = self.screened.said
        if self._gate is None or self._gate.said is None or before == "redact":
            return before
        return self._gate.said

    async def begin(self) -> None:
        """Wait for the first piece; before it, another candidate may take over.

        Raises:
            EngineError: Nobody answers; the call is closed.
            ContextTooLong: It fits nobody's window; the call is closed.
        """
        async with self._closed_if_broken():
            await self._begin()

    async def _begin(self) -> None:
        while True:
            try:
                piece = await anext(self._pieces)
                self._first = piece, self._take(piece)
                return
            except StopAsyncIteration:
                failure: EngineError = EngineUnavailable("the engine said nothing", "incomplete")
            except EngineError as error:
                failure = error
            used = self._used_by(failure)
            record_interruption(self.option.deployment.model, "failed")
            self._span.fail(failure.code)
            if isinstance(failure, RequestRefused):
                self._leave_out(self.option.deployment)
            if self._number + 1 == len(self.options):
                await self._fail(failure.code, used)
                raise failure
            await self._next(failure, used)

    def _leave_out(self, deployment: Deployment) -> None:
        """Ask a deployment no more: its other addresses would say the same of the request."""
        behind = self._number + 1
        others = [each for each in self.options[behind:] if each.deployment.id != deployment.id]
        self.options = [*self.options[:behind], *others]

    async def pieces(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Yield what is made, and close the call after the last of it.

        Raises:
            EngineError: It broke off; the call is closed.
            Fenced: Somebody else has taken the call over.
            SafetyUnavailable: What its policy asks for cannot be judged; the call is closed.
        """
        async with self._closed_if_broken():
            assert self._first is not None
            (piece, shown), self._first = self._first, None
            gate = self._gate
            try:
                while piece.ended is None and not (gate is not None and gate.blocked):
                    yield shown
                    piece = await anext(self._pieces)
                    shown = self._take(piece)
            except EngineError as error:
                record_interruption(self.option.deployment.model, "failed")
                self._span.fail(error.code)
                await self._fail(error.code, self._used_by(error))
                raise
            except StopAsyncIteration:
                await self._fail("incomplete", await self._run.used())
                raise EngineUnavailable("the stream ended without its last piece") from None
            if gate is not None:
                if gate.asks:
                    shown += await gate.judged(self.ask)
                    self._journal.add([], gate.journal())
                if gate.blocked:
                    if gate.failed is None:
                        yield shown
                    await self._filter(piece.ended)
                    return
            assert piece.ended is not None
            # The last words first: they need not wait for the books.
            yield shown
            await self._succeed(piece.ended)

    async def leave(self) -> None:
        """End the call because its client has gone: what was made is paid for."""
        if self._closing.begun:
            return
        with contextlib.suppress(Exception):
            await self._pieces.aclose()
        record_interruption(self.option.deployment.model, "cancelled")
        used = await self._run.used()
        self._span.fail("cancelled")
        self.used = told_usage(used)
        await self._close("cancelled", used, finish_reason="cancelled")

    @contextlib.asynccontextmanager
    async def _closed_if_broken(self) -> AsyncGenerator[None, None]:
        """Close the call whatever breaks: while this process lives nobody else would."""
        try:
            yield
        except Exception:
            if not self._closing.begun:
                with contextlib.suppress(Exception):
                    await self._pieces.aclose()
                record_interruption(self.option.deployment.model, "failed")
                self._span.fail("internal")
                # What broke is told, not that closing was in vain: then its workflow closes it.
                with contextlib.suppress(Exception):
                    await self._fail("internal", await self._run.used())
            raise

    def _start(self) -> None:
        option = self.option
        key = f"{self.task_id}:1#{self._number}"
        self._journal = LaneJournal(self.deps.db, self.organisation_id, key, 1)
        self._key = key
        self._run: Run = (
            UpstreamRun(self.deps, option, self.spec)
            if option.is_upstream
            else TritonRun(self.deps, option, self.spec, self.prompt, request_id=f"{key}@1")
        )
        self._pieces = self._run.pieces()
        self._span = CallSpan(option, self.spec, self.task_id, max_tokens=self.prompt.max_tokens)

    async def _next(self, failure: EngineError, used: AttemptUsage) -> None:
        """Have the next candidate take over.

        Raises:
            ContextTooLong: The conversation does not fit its window either; the call is closed.
        """
        number = self._number + 1
        option = self.options[number]
        try:
            prompt = await prompt_of(self.deps, option, self.spec)
        except Exception:
            await self._fail("failed", used)
            raise
        await calls.next_candidate(
            self.deps.db,
            self.organisation_id,
            self.task_id,
            candidate=number,
            usage=used,
            error_code=failure.code,
            staged=staged(option, prompt),
            trace_id=self._trace_id,
        )
        self._number, self.prompt = number, prompt
        self._start()

    def _take(self, piece: Piece) -> tuple[Delta, ...]:
        """Take down a piece, and return what its caller is shown of it."""
        gate = self._gate
        if gate is None:
            for delta in piece.deltas:
                self.answer.add(delta)
            self._journal.add(piece.token_ids, piece.text)
            return piece.deltas
        shown = gate.take(piece.deltas, ended=piece.ended is not None)
        self._journal.add(piece.token_ids, gate.journal())
        return shown

    @property
    def _kept(self) -> Answer:
        """The answer as it is kept: as the policy let it pass, without the originals."""
        return self.answer if self._gate is None else self._gate.kept

    async def _filter(self, end: Ended | None) -> None:
        """End an answer that its policy cut off: the engine stops, and what it made is paid for.

        Raises:
            SafetyUnavailable: It was not judged to be bad, but could not be judged.
        """
        assert self._gate is not None
        if end is None:
            with contextlib.suppress(Exception):
                await self._pieces.aclose()
            record_interruption(self.option.deployment.model, "cancelled")
        used = await self._run.used() if end is None else end.usage
        self._span.fail(FILTERED)
        if self._gate.failed is not None:
            told = not_judged(self._gate.failed)
            await self._fail("safety_unavailable", used, told)
            raise told
        self.used = told_usage(used)
        await self._close("succeeded", used, finish_reason=FILTERED)

    def _used_by(self, error: Exception) -> AttemptUsage:
        if not isinstance(error, EngineError) or error.usage is None:
            # A model under Triton: its meter is asked when the books are made up.
            return AttemptUsage(0, 0, 0, "journal")
        status = error.told.status if error.told else None
        if error.code in _NOT_BEGUN or (status is not None and not error.sent):
            return AttemptUsage(0, 0, 0, "upstream")
        return attempt_usage(error.usage)

    async def _succeed(self, end: Ended) -> None:
        self.used = told_usage(end.usage)
        record_generation(self.option.deployment.model, end.usage, end)
        self._span.succeed(
            end,
            key=self._key,
            answer=self._kept.text,
            trace_prompts=self.deps.settings.trace_prompts,
        )
        await self._close(
            "succeeded",
            end.usage,
            # What its caller is told: a choice among functions is an end of its own.
            finish_reason=self._kept.finish_reason or end.finish_reason,
            stop_reason=end.stop_reason,
            timings=end.timings,
            cache_key=self.cache_key,
        )

    async def _fail(self, code: str, used: AttemptUsage, told: OverlineError | None = None) -> None:
        if used.source == "journal":
            used = await self._run.used()
        told = told or unanswered(code)
        await self._close("failed", used, error_code=code, error=failure_document(told))

    async def _close(self, outcome: Any, used: AttemptUsage, **fields: Any) -> None:
        """Close the call, whatever becomes of who waits for it."""

        def ended(closed: calls.Closed | None) -> None:
            if closed is not None:
                self.billed_usd = closed.billed_usd
                record_settlement(self.option.deployment.model, outcome, closed)
                record_task(outcome)
            self.ended(self, closed=closed is not None)

        await self._closing.close(self._journal, lambda: self._ending(outcome, used, fields), ended)

    def _ending(self, outcome: Any, used: AttemptUsage, fields: dict[str, Any]) -> calls.Ending:
        seq, ids, text = self._journal.rest()
        kept = outcome != "failed"
        option = self.option
        decision = self._gate and self._gate.decision(
            self.task_id, self.screened.version, actor=self.actor
        )
        return calls.Ending(
            generation_key=self._key,
            epoch=1,
            outcome=outcome,
            usage=used,
            seq=seq,
            token_ids=ids,
            text=text,
            answer=self.screened.marked(self._kept, self.safety) if kept else None,
            answer_usage=usage_document(used) if kept else None,
            decision={
                "route": self.spec.model,
                "candidates": [
                    {
                        "model": option.name,
                        "version": option.model.version,
                        "deployment": option.deployment.id,
                        "reason": "asked for by name",
                    }
                ],
                "refused": [],
            },
            decisions=(decision,) if decision else (),
            **fields,
        )
