"""Vectors on the fast lane: one call to an engine, metered as any other."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import msgspec

from activities.dependencies import Dependencies
from activities.lane.closing import Closing, failure_document, unanswered
from activities.lane.journal import LaneJournal
from activities.lane.options import Option
from inference.errors import EngineError, EngineFailed, EngineUnavailable
from observability.metrics import record_settlement, record_task
from observability.spans import current_trace_id, trace_carrier
from store import calls
from store.catalogue import Catalogue
from store.journal import AttemptUsage
from store.pricing import dollars
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest, NotFound

__all__ = ["EmbeddedCall", "Embedder", "embedder_of"]

# A sentence model puts one token before a text and one behind it.
_AROUND_TEXT = 2


@dataclass
class EmbeddedCall:
    """Vectors, and what they cost."""

    task_id: UUID
    model: str
    vectors: list[list[float]]
    tokens: int
    billed_usd: Decimal
    cache: str = "miss"
    replayed: bool = False
    rate: Mapping[str, Any] | None = None
    safety: str | None = None


def embedder_of(catalogue: Catalogue, spec: CallSpec) -> Option:
    """Return who embeds.

    Raises:
        NotFound: There is no such model, or none that is deployed and has a price.
        InvalidRequest: It cannot do what is asked.
    """
    model, price = catalogue.find(spec.model), catalogue.price_of(spec.model)
    deployments = catalogue.deployments_of(spec.model)
    if model is None or "embedding" not in model.capabilities or not deployments:
        raise NotFound(
            "The model does not exist, or does not embed.",
            param="model",
            code="model_not_found",
        )
    if price is None:
        raise NotFound(
            "The model has no price, so it is never served.",
            param="model",
            code="model_unpriced",
        )
    option = Option(spec.model, model, deployments[0], price, deployments[0].urls[0])
    if spec.parameters.get("dimensions") and not option.is_upstream:
        raise InvalidRequest(
            "'dimensions' is not supported: the model's vectors have one length.",
            param="dimensions",
            code="unsupported_parameter",
        )
    return option


@dataclass(frozen=True)
class Embedder:
    """Embeds for one call that is open, and closes it.

    Attributes:
        give_up: Lets go of a call that could not be closed.
    """

    deps: Dependencies
    option: Option
    spec: CallSpec
    texts: Sequence[str]
    give_up: Callable[[UUID, UUID], None]

    async def most_tokens(self) -> int:
        """Return how many tokens the texts have at most; exactly, under Triton."""
        if self.option.is_upstream:
            return sum(len(text.encode()) + _AROUND_TEXT for text in self.texts)
        tokenizer = await self.deps.tokenizers.of(self.option.model.name)
        window = self.option.model.context_window
        return sum(min(tokenizer.count(text) + _AROUND_TEXT, window) for text in self.texts)

    def most_usd(self, tokens: int) -> Decimal:
        """Return what so many tokens cost, rounded up."""
        price = self.option.price
        dearest = max(price.input_usd_per_million, price.cached_input_usd_per_million)
        return dollars(dearest * tokens)

    async def make(self, known: calls.Known, tokens: int, *, keep: bool) -> EmbeddedCall:
        """Embed, and close the call.

        Raises:
            EngineError: Nobody answered; the call is closed.
            DatabaseUnavailable: Postgres was away for longer than a client waits.
        """
        try:
            vectors, used = await self._vectors(tokens)
        except (Exception, asyncio.CancelledError) as error:
            # Whatever broke: while this process lives nobody else would close it.
            failed = isinstance(error, Exception)
            code = "internal" if failed else "cancelled"
            if isinstance(error, EngineError):
                code = error.code
            # What broke is told, not that closing was in vain: then its workflow closes it.
            with contextlib.suppress(Exception):
                await self._close(
                    known,
                    AttemptUsage(0, 0, 0, "engine"),
                    outcome="failed" if failed else "cancelled",
                    error_code=code,
                    error=failure_document(unanswered(code)),
                )
            raise
        billed_usd = await self._close(
            known,
            used,
            outcome="succeeded",
            finish_reason="stop",
            answer={"choices": [{"finish_reason": "stop"}], "vectors": vectors} if keep else None,
            answer_usage={"prompt_tokens": used.prompt_tokens},
        )
        return EmbeddedCall(
            known.task_id,
            self.option.name,
            vectors,
            used.prompt_tokens,
            billed_usd,
            rate=known.rate,
        )

    async def _vectors(self, tokens: int) -> tuple[list[list[float]], AttemptUsage]:
        """Ask the first address of the deployment that answers."""
        *others, last = self.option.deployment.urls
        for url in others:
            with contextlib.suppress(EngineUnavailable):
                return await self._vectors_at(url, tokens)
        return await self._vectors_at(last, tokens)

    async def _vectors_at(self, url: str, tokens: int) -> tuple[list[list[float]], AttemptUsage]:
        option = self.option
        if not option.is_upstream:
            vectors = await self.deps.engines.at(url).embed(
                option.engine_model, self.texts, metadata=tuple(trace_carrier().items())
            )
            return vectors, AttemptUsage(tokens, 0, 0, "engine")
        body: dict[str, Any] = {
            "model": option.engine_model,
            "input": list(self.texts),
            **self.spec.parameters,
        }
        upstream = await self.deps.upstream(option.deployment, url)
        made = await upstream.embeddings(body)
        vectors = _read(made.data)
        if len(vectors) != len(self.texts):
            raise EngineFailed("the upstream gave another number of vectors", "bad_answer")
        used = made.usage.prompt_tokens
        return vectors, AttemptUsage(used, 0, 0, made.usage.source)

    async def _close(
        self, known: calls.Known, used: AttemptUsage, *, outcome: Any, **fields: Any
    ) -> Decimal:
        """Close the call, whatever becomes of who waits for it; return what it cost."""
        billed_usd = Decimal(0)

        def ended(closed: calls.Closed | None) -> None:
            nonlocal billed_usd
            if closed is None:
                self.give_up(known.organisation_id, known.task_id)
            else:
                billed_usd = closed.billed_usd
                record_settlement(self.option.deployment.model, outcome, closed)
                record_task(outcome)

        db, key = self.deps.db, f"{known.task_id}:1#0"
        ending = calls.Ending(generation_key=key, epoch=1, usage=used, outcome=outcome, **fields)
        await Closing(db, known.organisation_id, known.task_id, current_trace_id()).close(
            # There is no text of vectors.
            LaneJournal(db, known.organisation_id, key, 1),
            lambda: ending,
            ended,
        )
        return billed_usd


class _Vector(msgspec.Struct):
    embedding: list[float] | str
    index: int = 0


_decode = msgspec.json.Decoder(list[_Vector]).decode


def _read(data: msgspec.Raw) -> list[list[float]]:
    try:
        found = sorted(_decode(data), key=lambda vector: vector.index)
        return [
            _floats(each.embedding) if isinstance(each.embedding, str) else each.embedding
            for each in found
        ]
    except (msgspec.DecodeError, ValueError, struct.error) as error:
        raise EngineFailed("the upstream's vectors cannot be read", "bad_answer") from error


def _floats(packed: str) -> list[float]:
    raw = base64.b64decode(packed)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))
