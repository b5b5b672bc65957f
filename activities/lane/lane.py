"""The door of the fast lane: opens calls, and keeps this process known as their owner."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from activities.dependencies import Dependencies
from activities.judging import Payer
from activities.lane.asking import prompt_of
from activities.lane.embedding import EmbeddedCall, Embedder, embedder_of
from activities.lane.kept import KeptCall, kept
from activities.lane.lease import Lease
from activities.lane.live import LiveCall, staged
from activities.lane.options import Option, cache_key, most_usd, options_of
from activities.lane.policing import Opening, Policing, Who
from activities.lane.refusing import not_admitted, not_let_in
from activities.lane.repetition import first_of
from activities.lane.texts import is_json, restored_answer, restored_spec, texts_of, with_texts
from activities.lane.usages import usage_of
from inference.answers import Answer
from observability.metrics import record_cache, record_refusal, record_task
from observability.spans import current_trace_id
from safety.policy import Rule
from store import call_owners, calls
from store.errors import DatabaseUnavailable, KeyRestricted
from store.identity import Origin
from store.refusals import Refusal
from workflows.contracts.call import CLIENT_GONE, CallSpec
from workflows.errors import Forbidden
from workflows.request_digest import RequestDigest

__all__ = ["FastLane"]

log = logging.getLogger("overline.lane")


class FastLane:
    """Calls of one process.

    Attributes:
        lease: What its calls are its own by.
        live: Those that are being made.
    """

    def __init__(self, deps: Dependencies) -> None:
        self.deps = deps
        self.lease = Lease(deps.db, self._end_as_wished)
        self.live: dict[UUID, LiveCall] = {}
        self._policing = Policing(deps, self)
        self._leaving: set[asyncio.Task[None]] = set()

    @property
    def steady(self) -> bool:
        """Whether this process has said that it lives for longer than others are waited for."""
        return self.lease.steady

    async def start(self) -> None:
        """Begin to say that this process lives."""
        self.lease.start()
        # So that no call waits for a tokenizer; one that is missing is said where it is needed.
        self._leaving.add(asyncio.create_task(_quietly(self.deps.preload())))

    async def stop(self) -> None:
        """Say that it ends: what it leaves open is taken over at once."""
        await self.lease.stop()
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
        once: bool = False,
    ) -> LiveCall | KeptCall:
        """Open a call and wait for the first of its answer.

        A repetition is answered as its first call was. One that failed or was cancelled is made
        anew under its key, unless there is to be but one call: then it is told how that ended.

        Raises:
            OverlineError: It is refused; nothing was used up.
            EngineError: Nobody answers it; it is closed.
            DatabaseUnavailable: Postgres is away; nothing was asked of an engine.
        """
        await self.lease.held()
        who = Who(key_id, key_digest, origin)

        async def begin(made: Opening) -> LiveCall | KeptCall:
            return await self._open(
                spec if made.texts is None else with_texts(made.spec, made.texts),
                who,
                made,
                idempotency_key=idempotency_key,
                request_digest=request_digest,
                cache=cache,
                once=once,
            )

        return await self._policing.under(who, spec, lambda: texts_of(spec), begin)

    async def _open(
        self,
        spec: CallSpec,
        who: Who,
        made: Opening,
        *,
        idempotency_key: str | None,
        request_digest: str,
        cache: str,
        once: bool = False,
        within: bool = False,
    ) -> LiveCall | KeptCall:
        deps = self.deps
        options = options_of(await deps.catalogue.read(), spec, made.task_id.int)
        prompt = await prompt_of(deps, options[0], spec)
        key = cache_key(spec, cache)
        known = await self._opened(
            spec,
            who,
            made,
            idempotency_key=idempotency_key,
            request_digest=request_digest,
            amount_usd=most_usd(
                options,
                spec,
                prompt_tokens=len(prompt.ids) or None,
                likely=prompt.likely or len(prompt.ids),
            ),
            cache_key=key,
            staged=staged(options[0], prompt),
            longest=_longest(spec, options[0]),
            once=once,
            within=within,
        )
        if known.how == "earlier":
            return kept(spec, known, await self._policing.originals(known), replayed=True)
        if key is not None:
            record_cache(known.how == "cached")
        record_task("accepted")
        if known.how == "cached":
            record_task("succeeded")
            return kept(spec, known, made.call.redactions, cache="hit", said=made.call.said)
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
            screened=made.call,
            ask=self._policing.asks(who, spec, ends=True) if made.call.policy is not None else None,
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
        once: bool = False,
    ) -> EmbeddedCall:
        """Embed texts; a repetition as in `open`.

        Raises:
            OverlineError: It is refused; nothing was used up.
            EngineError: Nobody answers; the call is closed.
            DatabaseUnavailable: Postgres is away; nothing was asked of an engine.
        """
        await self.lease.held()
        who = Who(key_id, key_digest, origin)

        async def begin(made: Opening) -> EmbeddedCall:
            return await self._embed(
                made.spec,
                texts if made.texts is None else made.texts["input"],
                who,
                # Vectors have nothing in them to put back.
                dataclasses.replace(made, sealed=None),
                idempotency_key=idempotency_key,
                request_digest=request_digest,
                once=once,
            )

        return await self._policing.under(who, spec, lambda: {"input": texts}, begin)

    async def _embed(
        self,
        spec: CallSpec,
        texts: Sequence[str],
        who: Who,
        made: Opening,
        *,
        idempotency_key: str | None,
        request_digest: str,
        once: bool,
    ) -> EmbeddedCall:
        option = embedder_of(await self.deps.catalogue.read(), spec)
        embedder = Embedder(self.deps, option, spec, texts, self.lease.give_up)
        tokens = await embedder.most_tokens()
        known = await self._opened(
            spec,
            who,
            made,
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
            once=once,
        )
        if known.how == "earlier":
            assert known.answer is not None
            return EmbeddedCall(
                known.task_id,
                known.model,
                known.answer["vectors"],
                usage_of(known.usage).prompt_tokens,
                known.billed_usd,
                replayed=True,
                rate=known.rate,
                safety=made.call.said,
            )
        record_task("accepted")
        embedded = await embedder.make(known, tokens, keep=idempotency_key is not None)
        embedded.safety = made.call.said
        return embedded

    async def ask(self, spec: CallSpec, who: Who, *, within: bool) -> LiveCall | KeptCall:
        """Open a call by which a model is asked to judge: metered as any, not screened itself."""
        return await self._open(
            spec,
            who,
            Opening(spec),
            idempotency_key=None,
            request_digest="",
            cache="auto",
            within=within,
        )

    async def judge(self, rule: Rule, texts: Sequence[str], payer: Payer) -> list[bool]:
        """Have a model judge texts of a task; see `activities.judging`.

        Raises:
            DetectorFailed: It could not be asked.
        """
        await self.lease.held()
        held = self.deps.screening.policies.of_key(payer.key_id)
        about = CallSpec(
            endpoint="chat",
            model="",
            user=payer.user,
            tags=dict(payer.tags),
            policy=held.version if held else 0,
        )
        who = Who(payer.key_id, payer.key_digest, payer.origin)
        return await self._policing.asks(who, about, ends=True)(rule, texts)

    async def _opened(
        self,
        spec: CallSpec,
        who: Who,
        made: Opening,
        *,
        idempotency_key: str | None,
        request_digest: str,
        amount_usd: Decimal,
        cache_key: str | None,
        staged: calls.Staged,
        longest: int | None,
        once: bool,
        within: bool = False,
    ) -> calls.Known:
        """File a call, or find the one that it repeats, over and with an answer."""
        asked = calls.Asked(
            key_id=who.key_id,
            key_digest=who.key_digest,
            task_id=made.task_id,
            idempotency_key=idempotency_key,
            request_digest=RequestDigest.of(
                self.deps.sealer, request_digest, idempotency_key
            ).filed,
            input=spec.document(),
            user=spec.user,
            tags=spec.tags,
            endpoint=spec.endpoint,
            model=spec.model,
            route=spec.model,
            stored=spec.stored,
            amount_usd=amount_usd,
            cache_key=cache_key,
            process_id=self.lease.process_id,
            staged=staged,
            trace_id=current_trace_id(),
            longest=longest,
            origin=who.origin,
            policy=spec.policy,
            within=within,
            decisions=made.call.decisions,
            redactions=made.sealed,
        )
        while True:
            known = await self._filed(asked)
            if known.how != "earlier":
                return known
            # Its own row can be the first one only where this very statement ran before.
            own = known.task_id == asked.task_id
            first = await first_of(known, request_digest, self.deps.db, self.live, once=once or own)
            if first is not None:
                return dataclasses.replace(first, how="earlier", rate=known.rate)

    async def _filed(self, asked: calls.Asked) -> calls.Known:
        try:
            known = await calls.open_call(self.deps.db, asked)
        except KeyRestricted as restricted:
            raise Forbidden(str(restricted)) from None
        except (DatabaseUnavailable, asyncio.CancelledError) as error:
            if isinstance(error, DatabaseUnavailable):
                record_refusal("database_unavailable", "database")
            # It may have been opened, and this process lives, so nobody else would look for it.
            self.lease.doubt(asked.key_id, asked.key_digest, asked.task_id)
            raise
        match known:
            case calls.Unauthenticated() | calls.WrongScope():
                raise not_let_in(known)
            case Refusal():
                record_refusal(known.code, known.scope)
                raise not_admitted(known)
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
        if team_id == known.team_id and (originals := await self._policing.originals(known)):
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
            self.lease.give_up(call.organisation_id, call.task_id)

    async def _end_as_wished(self) -> None:
        """End what was asked to end, if this process was not told when it was asked."""
        if self.live:
            for task_id in await call_owners.calls_to_end(self.deps.db, self.lease.process_id):
                self.cancel(task_id)


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:
        log.warning("work of the lane behind its callers ended badly: %s", type(error).__name__)


def _longest(spec: CallSpec, option: Option) -> int | None:
    """Return the longest answer that was asked for, all choices together; None: not said."""
    return None if spec.longest is None else option.longest(spec) * spec.choices
