"""Vectors on the fast lane: one call to an engine, metered as any other."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Any
from uuid import UUID

import msgspec

from activities.dependencies import Dependencies
from activities.lane.options import UPSTREAM, Option
from inference.errors import EngineError, EngineFailed
from observability.spans import current_trace_id, trace_carrier
from store import calls
from store.catalogue import Catalogue
from store.errors import DatabaseUnavailable
from store.journal import AttemptUsage
from workflows.contracts.call import CallSpec
from workflows.errors import EngineDown, InvalidRequest, NotFound

__all__ = ["EmbeddedCall", "Embedder", "embedder_of"]

_MILLION = Decimal(1_000_000)
_NANO = Decimal("0.000000001")
# A sentence model puts one token before a text and one behind it.
_AROUND_TEXT = 2
_CLOSE_TRIES = 20
_CLOSE_PAUSE_S = 0.5


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
    """Embeds for one call that is open, and closes it."""

    deps: Dependencies
    option: Option
    spec: CallSpec
    texts: Sequence[str]

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
        return (dearest * tokens / _MILLION).quantize(_NANO, rounding=ROUND_UP)

    async def make(self, known: calls.Known, tokens: int, *, keep: bool) -> EmbeddedCall:
        """Embed, and close the call.

        Raises:
            EngineError: Nobody answered; the call is closed.
        """
        try:
            vectors, used = await self._vectors(tokens)
        except (Exception, asyncio.CancelledError) as error:
            # Whatever broke: while this process lives nobody else would close it.
            failed = isinstance(error, Exception)
            code = "internal" if failed else "cancelled"
            if isinstance(error, EngineError):
                code = error.code
            ending = self._ending(
                known,
                AttemptUsage(0, 0, 0, "engine"),
                outcome="failed" if failed else "cancelled",
                error_code=code,
                error={
                    "code": EngineDown.code,
                    "message": f"the model's engine did not answer ({code})",
                    "step": 1,
                    "layer": "generation.generate",
                },
            )
            await asyncio.shield(self._close(known, ending))
            raise
        answer = {"choices": [{"finish_reason": "stop"}], "vectors": vectors} if keep else None
        closed = await asyncio.shield(
            self._close(
                known,
                self._ending(
                    known,
                    used,
                    outcome="succeeded",
                    finish_reason="stop",
                    answer=answer,
                    answer_usage={"prompt_tokens": used.prompt_tokens},
                ),
            )
        )
        return EmbeddedCall(
            known.task_id,
            self.option.name,
            vectors,
            used.prompt_tokens,
            closed.billed_usd,
            rate=known.rate,
        )

    async def _vectors(self, tokens: int) -> tuple[list[list[float]], AttemptUsage]:
        option = self.option
        url = option.deployment.urls[0]
        if option.deployment.engine != UPSTREAM:
            vectors = await self.deps.engines.at(url).embed(
                option.engine_model, self.texts, metadata=tuple(trace_carrier().items())
            )
            return vectors, AttemptUsage(tokens, 0, 0, "engine")
        body: dict[str, Any] = {
            "model": option.engine_model,
            "input": list(self.texts),
            **self.spec.parameters,
        }
        made = await self.deps.upstream(option.deployment, url).embeddings(body)
        vectors = _read(made.data)
        if len(vectors) != len(self.texts):
            raise EngineFailed("the upstream gave another number of vectors", "bad_answer")
        used = made.usage.prompt_tokens
        return vectors, AttemptUsage(used, 0, 0, made.usage.source)

    def _ending(self, known: calls.Known, used: AttemptUsage, **fields: Any) -> calls.Ending:
        return calls.Ending(generation_key=f"{known.task_id}:1#0", epoch=1, usage=used, **fields)

    async def _close(self, known: calls.Known, ending: calls.Ending) -> calls.Closed:
        for _ in range(_CLOSE_TRIES):
            with contextlib.suppress(DatabaseUnavailable):
                return await calls.close_call(
                    self.deps.db,
                    known.organisation_id,
                    known.task_id,
                    ending,
                    current_trace_id(),
                )
            await asyncio.sleep(_CLOSE_PAUSE_S)
        return await calls.close_call(
            self.deps.db, known.organisation_id, known.task_id, ending, current_trace_id()
        )


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
