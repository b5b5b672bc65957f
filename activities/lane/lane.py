"""The door of the fast lane: opens calls, and keeps this process known as their owner."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal
from uuid import UUID, uuid4

from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.lane.asking import prompt_of
from activities.lane.embedding import EmbeddedCall, Embedder, embedder_of
from activities.lane.gate import Ask
from activities.lane.live import NOT_SCREENED, LiveCall, staged, usage_of
from activities.lane.moderation import flagged, question
from activities.lane.options import Option, cache_key, most_usd, options_of
from activities.lane.screening import (
    ScreenedCall,
    StoppedByPolicy,
    refuse_unscreenable,
    screened,
)
from activities.lane.texts import is_json, restored_answer, restored_spec, texts_of, with_texts
from activities.rate import rate_limited
from inference.answers import Answer
from inference.errors import EngineError
from inference.upstream.messages import Delta
from inference.usage import TokenUsage
from observability.metrics import record_cache, record_refusal, record_task
from observability.spans import current_trace_id
from safety.errors import DetectorFailed
from safety.policy import Place, Policy, Rule
from safety.redactions import Redactions
from store import calls
from store.errors import DatabaseUnavailable, KeyRestricted, PolicyChanged, StoreError
from store.identity import Origin
from store.policy_view import Held
from store.redactions import Sealed
from store.refusals import Refusal
from store.screened_calls import ScreenedOut, file_screened_out
from workflows.codec import PayloadRefused
from workflows.contracts.call import CLIENT_GONE, CallSpec
from workflows.errors import (
    ApprovalRequired,
    BudgetExceeded,
    Conflict,
    ContentBlocked,
    Forbidden,
    Internal,
    InvalidRequest,
    KeyRefused,
    OverlineError,
    RateLimited,
    SafetyUnavailable,
    Unauthenticated,
)

__all__ = ["FastLane", "KeptCall"]

log = logging.getLogger("overline.lane")

RENEW_EVERY_S = 2.0
LEASE_S = 10.0
# How long the repetition of a call that is being made waits for it.
REPEAT_PATIENCE_S = 60.0
_POLL_S = 0.1
# How often a call that may have been opened is looked for, once every renewal.
DOUBTS = 5
# How often a call is screened again because its policy has changed meanwhile.
_POLICY_TRIES = 8
# What a call is refused with as such when it is the judging of its texts that is refused.
_REFUSED = (BudgetExceeded, RateLimited, KeyRefused, Unauthenticated, DatabaseUnavailable)
_CODES: Mapping[type[OverlineError], str] = {
    ContentBlocked: "content_blocked",
    ApprovalRequired: "approval_required",
}


@dataclass(frozen=True, slots=True)
class _Who:
    """Who calls."""

    key_id: UUID
    key_digest: bytes
    origin: Origin

    @property
    def actor(self) -> str:
        """As the audit log names them."""
        return f"ol_{self.key_id.hex}"


@dataclass
class KeptCall:
    """A call whose answer is there already: an earlier one's, or the cache's."""

    spec: CallSpec
    task_id: UUID
    created_at: datetime
    model: str
    answer: Answer
    used: TokenUsage
    billed_usd: Decimal
    saved_usd: Decimal = Decimal(0)
    cache: Literal["hit", "miss"] = "miss"
    replayed: bool = False
    rate: Mapping[str, Any] | None = None
    attempts: int = 0
    safety: str | None = None

    async def pieces(self) -> AsyncGenerator[tuple[Delta, ...], None]:
        """Yield the answer, as if it were being made."""
        for delta in self.answer.deltas():
            yield (delta,)

    async def leave(self) -> None:
        """Nothing is left to end."""

    async def settled(self) -> None:
        """Nothing is left to wait for."""


@dataclass
class FastLane:
    """Calls of one process.

    Attributes:
        process_id: As whose they are filed.
        live: Those that are being made.
    """

    deps: Dependencies
    process_id: UUID = field(default_factory=uuid4)
    live: dict[UUID, LiveCall] = field(default_factory=dict)
    _doubtful: dict[tuple[UUID, bytes, UUID], int] = field(default_factory=dict)
    _given_up: set[tuple[UUID, UUID]] = field(default_factory=set)
    _renewing: asyncio.Task[None] | None = None
    _renewed_once: asyncio.Event = field(default_factory=asyncio.Event)
    _steady_since: float | None = None
    _leaving: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def steady(self) -> bool:
        """Whether this process has said so for longer than others are waited for."""
        return self._steady_since is not None and time.monotonic() - self._steady_since > LEASE_S

    async def start(self) -> None:
        """Begin to say that this process lives."""
        self._renewing = asyncio.create_task(self._renew())
        # So that no call waits for a tokenizer; one that is missing is said where it is needed.
        self._leaving.add(asyncio.create_task(_quietly(self.deps.preload())))

    async def stop(self) -> None:
        """Say that it ends: what it leaves open is taken over at once."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await calls.forget_process(self.deps.db, self.process_id)
        await self.deps.upstreams.close()
        await self.deps.engines.close()

    async def open(
        self,
        spec: CallSpec,
        *,
        key_id: UUID,
        key_digest: bytes,
        origin: Origin,
        idempotency_key: str | None,
        request_digest: str,
        cache: str,
    ) -> LiveCall | KeptCall:
        """Open a call and wait for the first of its answer.

        Raises:
            OverlineError: It is refused; nothing was used up.
            EngineError: Nobody answers it; it is closed.
            DatabaseUnavailable: Postgres is away; nothing was asked of an engine.
        """
        if not self._renewed_once.is_set():
            await self._first_renewal()
        who = _Who(key_id, key_digest, origin)
        fields: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "request_digest": request_digest,
            "cache": cache,
        }
        for _ in range(_POLICY_TRIES):
            held = self.deps.screening.policies.of_key(key_id)
            try:
                if held is None or held.policy is None:
                    return await self._open(spec, who, NOT_SCREENED, uuid7(), None, **fields)
                own = dataclasses.replace(spec, policy=held.version)
                task_id = uuid7()
                texts, made = await self._screened(held, own, texts_of(own), who, task_id)
                own = with_texts(own, texts)
                sealed = self._sealed(held, task_id, made)
                return await self._open(own, who, made, task_id, sealed, **fields)
            except PolicyChanged:
                await self._look_again(who)
        raise _unsettled()

    async def _open(
        self,
        spec: CallSpec,
        who: _Who,
        made: ScreenedCall,
        task_id: UUID,
        sealed: Sealed | None,
        *,
        idempotency_key: str | None,
        request_digest: str,
        cache: str,
    ) -> LiveCall | KeptCall:
        deps = self.deps
        options = options_of(await deps.catalogue.read(), spec)
        prompt = await prompt_of(deps, options[0], spec)
        key = cache_key(spec, cache)
        known = await self._opened(
            spec,
            who,
            made,
            task_id,
            sealed,
            idempotency_key=idempotency_key,
            request_digest=request_digest,
            amount_usd=most_usd(options, spec, prompt_tokens=len(prompt.ids) or None),
            cache_key=key,
            staged=staged(options[0], prompt),
            longest=_longest(spec, options[0]),
        )
        if known.how == "earlier":
            first = await self._earlier(known)
            originals = await self._originals(first)
            first = dataclasses.replace(first, rate=known.rate)
            return _kept(spec, first, originals, replayed=True)
        if key is not None:
            record_cache(known.how == "cached")
        record_task("accepted")
        if known.how == "cached":
            record_task("succeeded")
            return _kept(spec, known, made.redactions, cache="hit", said=made.said)
        call = LiveCall(
            deps=deps,
            spec=spec,
            options=options,
            prompt=prompt,
            organisation_id=known.organisation_id,
            task_id=known.task_id,
            created_at=known.created_at,
            cache_key=key,
            ended=self._ended,
            rate=known.rate,
            screened=made,
            ask=self._asks(who, spec, ends=True) if made.policy is not None else None,
            actor=who.actor,
        )
        self.live[known.task_id] = call
        try:
            await call.begin()
        except asyncio.CancelledError as gone:
            # Only of a client that has gone: what a process leaves when it ends is taken over.
            if gone.args == (CLIENT_GONE,):
                self.let_go(call)
            raise
        return call

    async def embed(
        self,
        spec: CallSpec,
        texts: list[str],
        *,
        key_id: UUID,
        key_digest: bytes,
        origin: Origin,
        idempotency_key: str | None,
        request_digest: str,
    ) -> EmbeddedCall:
        """Embed texts.

        Raises:
            OverlineError: It is refused; nothing was used up.
            EngineError: Nobody answers; the call is closed.
            DatabaseUnavailable: Postgres is away; nothing was asked of an engine.
        """
        if not self._renewed_once.is_set():
            await self._first_renewal()
        who = _Who(key_id, key_digest, origin)
        fields: dict[str, Any] = {
            "idempotency_key": idempotency_key,
            "request_digest": request_digest,
        }
        for _ in range(_POLICY_TRIES):
            held = self.deps.screening.policies.of_key(key_id)
            try:
                if held is None or held.policy is None:
                    return await self._embed(spec, texts, who, NOT_SCREENED, uuid7(), **fields)
                own = dataclasses.replace(spec, policy=held.version)
                task_id = uuid7()
                found, made = await self._screened(held, own, {"input": texts}, who, task_id)
                return await self._embed(own, found["input"], who, made, task_id, **fields)
            except PolicyChanged:
                await self._look_again(who)
        raise _unsettled()

    async def _embed(
        self,
        spec: CallSpec,
        texts: Sequence[str],
        who: _Who,
        made: ScreenedCall,
        task_id: UUID,
        *,
        idempotency_key: str | None,
        request_digest: str,
    ) -> EmbeddedCall:
        option = embedder_of(await self.deps.catalogue.read(), spec)
        embedder = Embedder(self.deps, option, spec, texts)
        tokens = await embedder.most_tokens()
        known = await self._opened(
            spec,
            who,
            made,
            task_id,
            # Vectors have nothing in them to put back.
            None,
            idempotency_key=idempotency_key,
            request_digest=request_digest,
            amount_usd=embedder.most_usd(tokens),
            cache_key=None,
            staged=calls.Staged(
                model=option.name,
                model_version=option.model.version,
                tokenizer_version=option.model.tokenizer_version,
                deployment=option.deployment.id,
                replica=option.deployment.urls[0],
                likely_prompt=tokens,
            ),
            longest=0,
        )
        if known.how == "earlier":
            first = await self._earlier(known)
            assert first.answer is not None
            return EmbeddedCall(
                first.task_id,
                first.model,
                first.answer["vectors"],
                usage_of(first.usage).prompt_tokens,
                first.billed_usd,
                replayed=True,
                rate=known.rate,
                safety=made.said,
            )
        record_task("accepted")
        embedded = await embedder.make(known, tokens, keep=idempotency_key is not None)
        embedded.safety = made.said
        return embedded

    async def _screened(
        self,
        held: Held[Policy],
        spec: CallSpec,
        texts: Mapping[Place, Sequence[str]],
        who: _Who,
        task_id: UUID,
    ) -> tuple[Mapping[Place, Sequence[str]], ScreenedCall]:
        """Return a call's texts as its policy has them.

        Raises:
            OverlineError: The policy does not let it begin; that is on file, and nothing used up.
            PolicyChanged: Another one holds by now.
        """
        assert held.policy is not None
        try:
            refuse_unscreenable(spec, held.policy)
            return await screened(
                texts,
                policy=held.policy,
                version=held.version,
                task_id=task_id,
                actor=who.actor,
                ask=self._asks(who, spec, ends=False),
            )
        except StoppedByPolicy as stopped:
            code = _CODES[type(stopped.told)]
            refused = await file_screened_out(
                self.deps.db,
                ScreenedOut(
                    key_id=who.key_id,
                    key_digest=who.key_digest,
                    task_id=task_id,
                    policy=held.version,
                    user=spec.user,
                    tags=spec.tags,
                    endpoint=spec.endpoint,
                    model=spec.model,
                    code=code,
                    rule=stopped.rule,
                    trace_id=current_trace_id(),
                    decision=stopped.decision,
                    origin=who.origin,
                ),
            )
            if refused is not None:
                raise _rejected(refused) from None
            record_refusal(code, "policy")
            raise stopped.told from None
        except (SafetyUnavailable, InvalidRequest) as refused:
            # No statement has asked yet whether this is the policy that holds.
            await self._look_again(who, unless=held)
            if isinstance(refused, SafetyUnavailable):
                record_refusal("safety_unavailable", "policy")
            raise

    def _sealed(self, held: Held[Policy], task_id: UUID, made: ScreenedCall) -> Sealed | None:
        if not made.redactions:
            return None
        return self.deps.screening.shelf.seal(
            held.organisation_id, task_id, made.redactions.document()
        )

    async def _look_again(self, who: _Who, unless: Held[Policy] | None = None) -> None:
        """Look which policy holds for a key now.

        Raises:
            Unauthenticated: The key is nobody's.
            PolicyChanged: It is another one than `unless`.
        """
        held = await self.deps.screening.policies.look_at_key(who.key_id, who.key_digest)
        if held is None:
            raise Unauthenticated("Incorrect API key provided.")
        if unless is not None and held.version != unless.version:
            raise PolicyChanged("another safety policy holds by now")

    async def judge(
        self,
        rule: Rule,
        texts: Sequence[str],
        *,
        key_id: UUID,
        key_digest: bytes,
        user: str | None,
        tags: Mapping[str, str],
    ) -> list[bool]:
        """Have a model judge texts of a task; see `activities.judging`.

        Raises:
            DetectorFailed: It could not be asked.
        """
        if not self._renewed_once.is_set():
            await self._first_renewal()
        held = self.deps.screening.policies.of_key(key_id)
        about = CallSpec(
            endpoint="chat",
            model="",
            user=user,
            tags=dict(tags),
            policy=held.version if held else 0,
        )
        who = _Who(key_id, key_digest, Origin("127.0.0.1", "/v1/tasks"))
        return await self._asks(who, about, ends=True)(rule, texts)

    def _asks(self, who: _Who, about: CallSpec, *, ends: bool) -> Ask:
        """Return what has a model judge: by calls of their own, metered as any other.

        Args:
            who: Who pays.
            about: What is judged belongs to it.
            ends: It is an answer: that there is no budget left to judge it, or no room under a
                limit, is no refusal any more.
        """

        async def ask(rule: Rule, texts: Sequence[str]) -> list[bool]:
            return [
                bool(text) and await self._flagged(rule, text, who, about, ends) for text in texts
            ]

        return ask

    async def _flagged(self, rule: Rule, text: str, who: _Who, about: CallSpec, ends: bool) -> bool:
        call: LiveCall | KeptCall | None = None
        try:
            call = await self._open(
                question(rule, text, about),
                who,
                NOT_SCREENED,
                uuid7(),
                None,
                idempotency_key=None,
                request_digest="",
                cache="auto",
            )
            async for _ in call.pieces():
                pass
            return flagged(call.answer.text)
        except asyncio.CancelledError:
            if call is not None:
                self.let_go(call)
            raise
        except PolicyChanged:
            if not ends:
                raise
            # The answer keeps to the policy that its call began with; what judges it is new.
            held = await self.deps.screening.policies.look_at_key(who.key_id, who.key_digest)
            about = dataclasses.replace(about, policy=held.version if held else 0)
            return await self._flagged(rule, text, who, about, ends)
        except (EngineError, OverlineError, StoreError, ValueError) as error:
            if not ends and isinstance(error, _REFUSED):
                raise
            raise DetectorFailed(rule.id, type(error).__name__) from error

    async def _originals(self, known: calls.Known) -> Redactions:
        """Return what was taken out of the texts of a call that is on file."""
        if not (known.answer or {}).get("redacted"):
            return Redactions()
        try:
            redactions, _ = await self.deps.screening.redactions(
                known.organisation_id, known.task_id
            )
        except PayloadRefused as refused:
            log.warning("the redactions of a call cannot be opened: %s", refused)
            return Redactions()
        return redactions

    async def _opened(
        self,
        spec: CallSpec,
        who: _Who,
        made: ScreenedCall,
        task_id: UUID,
        sealed: Sealed | None,
        *,
        idempotency_key: str | None,
        request_digest: str,
        amount_usd: Decimal,
        cache_key: str | None,
        staged: calls.Staged,
        longest: int | None,
    ) -> calls.Known:
        asked = calls.Asked(
            key_id=who.key_id,
            key_digest=who.key_digest,
            task_id=task_id,
            idempotency_key=idempotency_key,
            request_digest=request_digest,
            input=spec.document(),
            user=spec.user,
            tags=spec.tags,
            endpoint=spec.endpoint,
            model=spec.model,
            route=spec.model,
            stored=spec.stored,
            amount_usd=amount_usd,
            cache_key=cache_key,
            process_id=self.process_id,
            staged=staged,
            trace_id=current_trace_id(),
            longest=longest,
            origin=who.origin,
            policy=spec.policy,
            decisions=made.decisions,
            redactions=sealed,
        )
        try:
            known = await calls.open_call(self.deps.db, asked)
        except KeyRestricted as restricted:
            raise Forbidden(str(restricted)) from None
        except (DatabaseUnavailable, asyncio.CancelledError) as error:
            if isinstance(error, DatabaseUnavailable):
                record_refusal("database_unavailable", "database")
            # It may have been opened, and this process lives, so nobody else would look for it.
            self._doubtful[who.key_id, who.key_digest, task_id] = DOUBTS
            raise
        match known:
            case calls.Unauthenticated() | calls.WrongScope():
                raise _rejected(known)
            case Refusal():
                record_refusal(known.code, known.scope)
                raise _refused(known)
            case _:
                return known

    async def read(
        self, organisation_id: UUID, task_id: UUID, team_id: UUID | None = None
    ) -> tuple[calls.Known, CallSpec] | None:
        """Return a call that is on file, with what was asked.

        Args:
            organisation_id: Whose it is.
            task_id: Its task.
            team_id: Who reads it: what was taken out of its texts is put back for its own team.
        """
        known = await calls.read_call(self.deps.db, organisation_id, task_id)
        if known is None:
            return None
        spec = CallSpec.of(known.input)
        if team_id == known.team_id and (originals := await self._originals(known)):
            assert known.answer is not None
            answer = restored_answer(
                Answer.of(known.answer), originals, as_json=is_json(spec)
            ).document()
            known = dataclasses.replace(known, answer=known.answer | answer)
            spec = restored_spec(spec, originals)
        return known, spec

    def cancel(self, task_id: UUID) -> bool:
        """End a call of this process, as if its client had gone; False: it makes no such."""
        call = self.live.get(task_id)
        if call is None or call.reader is None or call.over.is_set():
            return False
        return call.reader.cancel(CLIENT_GONE)

    def let_go(self, call: LiveCall | KeptCall) -> None:
        """End a call whose client has gone, behind the client's back."""
        task = asyncio.create_task(_quietly(call.leave()))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _ended(self, call: LiveCall, *, closed: bool) -> None:
        self.live.pop(call.task_id, None)
        if not closed:
            self._given_up.add((call.organisation_id, call.task_id))

    async def _earlier(self, known: calls.Known) -> calls.Known:
        """Wait for the first call that a repetition repeats, and return it with its answer.

        Raises:
            OverlineError: The key is another request's, or the first one failed, or still runs.
        """
        if known.conflict:
            raise Conflict(
                "This idempotency key was used for another request; use a new key for a new "
                "request.",
                code="idempotency_key_reused",
            )
        waited = 0.0
        while known.status in ("accepted", "running"):
            if waited >= REPEAT_PATIENCE_S:
                raise Conflict(
                    "The first request with this idempotency key is still being answered.",
                    code="idempotency_key_in_use",
                    retry_after_s=5,
                )
            own = self.live.get(known.task_id)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S if own is None else 1.0):
                    await (asyncio.sleep(_POLL_S) if own is None else own.over.wait())
            waited += _POLL_S
            again = await calls.read_call(self.deps.db, known.organisation_id, known.task_id)
            known = again or known
        if known.answer is None:
            told = known.error or {}
            raise Internal(
                "The first request with this idempotency key failed: "
                + str(told.get("message", known.status)),
                code="earlier_request_failed",
            )
        return known

    async def _first_renewal(self) -> None:
        await calls.renew_process(self.deps.db, self.process_id, LEASE_S)
        self._renewed_once.set()

    async def _renew(self) -> None:
        while True:
            try:
                await calls.renew_process(self.deps.db, self.process_id, LEASE_S)
                self._renewed_once.set()
                self._steady_since = self._steady_since or time.monotonic()
                await self._settle_doubts()
                await self._end_as_wished()
            except StoreError:
                self._steady_since = None
                await asyncio.sleep(0.2)
                continue
            await asyncio.sleep(RENEW_EVERY_S)

    async def _settle_doubts(self) -> None:
        """Close calls that may have been opened; let go of those that could not be closed.

        The former were never made; of the latter the workflow makes an end.
        """
        for doubt in list(self._doubtful):
            await calls.abandon(self.deps.db, *doubt)
            # More than once: the statement that opens it may still be on its way.
            self._doubtful[doubt] -= 1
            if self._doubtful[doubt] == 0:
                del self._doubtful[doubt]
        for given_up in list(self._given_up):
            await calls.disown(self.deps.db, *given_up)
            self._given_up.discard(given_up)

    async def _end_as_wished(self) -> None:
        """End what was asked to end, if this process was not told when it was asked."""
        if self.live:
            for task_id in await calls.calls_to_end(self.deps.db, self.process_id):
                self.cancel(task_id)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        log.warning("work of the lane behind its callers ended badly: %s", type(error).__name__)


def _kept(
    spec: CallSpec,
    known: calls.Known,
    originals: Redactions,
    *,
    cache: Literal["hit", "miss"] = "miss",
    replayed: bool = False,
    said: str | None = None,
) -> KeptCall:
    assert known.answer is not None
    return KeptCall(
        spec=spec,
        task_id=known.task_id,
        created_at=known.created_at,
        model=known.model,
        answer=restored_answer(Answer.of(known.answer), originals, as_json=is_json(spec)),
        used=usage_of(known.usage),
        billed_usd=known.billed_usd,
        saved_usd=known.saved_usd,
        cache=cache,
        replayed=replayed,
        rate=known.rate,
        safety=known.answer.get("safety", said),
    )


def _rejected(
    refused: calls.Unauthenticated | calls.WrongScope,
) -> Forbidden | Unauthenticated:
    match refused:
        case calls.Unauthenticated("address" | "endpoint"):
            return Forbidden("This key may not be used from this address, or not at this endpoint.")
        case calls.Unauthenticated():
            return Unauthenticated("Incorrect API key provided.")
        case calls.WrongScope():
            return Forbidden("The key may not make calls: it lacks the scope 'tasks'.")


def _unsettled() -> SafetyUnavailable:
    return SafetyUnavailable(
        "The safety policy changes faster than a call can be screened; try again.",
        retry_after_s=1,
    )


def _longest(spec: CallSpec, option: Option) -> int | None:
    """Return the longest answer that was asked for, all choices together; None: not said."""
    return None if spec.longest is None else option.longest(spec) * spec.choices


def _refused(refusal: Refusal) -> OverlineError:
    if refusal.code == "rate_limited":
        return rate_limited(refusal)
    if refusal.code == "key_restricted":
        return Forbidden(f"This key may not use this {refusal.scope}.")
    if refusal.code != "budget_exceeded":
        thing, _, state = refusal.code.partition("_")
        return KeyRefused(f"The call was not admitted: the {thing} is {state}.")
    return BudgetExceeded(
        f"The call may cost up to ${refusal.needed_usd:f}, but of the {refusal.scope}'s budget of "
        f"${refusal.limit_usd:f}, ${refusal.spent_usd:f} is spent and ${refusal.held_usd:f} held.",
        scope=refusal.scope,
        limit_usd=f"{refusal.limit_usd:f}",
        spent_usd=f"{refusal.spent_usd:f}",
        held_usd=f"{refusal.held_usd:f}",
        needed_usd=f"{refusal.needed_usd:f}",
    )
