"""Retrieval: passages of the caller's collections that are near a text in meaning."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from activities.dependencies import Dependencies
from activities.transcript import Unit
from inference.errors import EngineUnavailable
from inference.templates import ChatMessage
from store import retrieval
from store.retrieval import Hit

__all__ = ["EMBEDDING_MODEL", "Passages", "content_of", "with_content"]

EMBEDDING_MODEL = "all-minilm-l6-v2"
# A model under Triton answers one request after the other. Longer ones would keep waiting whoever
# asks a question, and whoever asks whether the model lives.
_TEXTS_A_REQUEST = 8


class Passages:
    """Embeds texts on Triton and searches pgvector."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps
        # Many documents at once are no quicker, and would be a queue before the model.
        self._one_at_a_time = asyncio.Lock()

    async def search(
        self, organisation_id: UUID, collections: Sequence[UUID], text: str, count: int
    ) -> list[Hit]:
        """Return the `count` nearest passages, nearest first."""
        # A question does not wait for the documents.
        (embedding,) = await self._embed([text])
        return await retrieval.search(
            self._deps.db, organisation_id, list(collections), embedding, count
        )

    async def embed(self, texts: list[str]) -> list[list[float]]:
        """Embed texts (384 dimensions, unit length) on the first replica that answers.

        Raises:
            EngineUnavailable: No replica answers.
        """
        async with self._one_at_a_time:
            return [
                vector
                for start in range(0, len(texts), _TEXTS_A_REQUEST)
                for vector in await self._embed(texts[start : start + _TEXTS_A_REQUEST])
            ]

    async def _embed(self, texts: list[str]) -> list[list[float]]:
        failure: EngineUnavailable | None = None
        for url in self._deps.settings.triton_urls:
            try:
                return await self._deps.engines.at(url).embed(EMBEDDING_MODEL, texts)
            except EngineUnavailable as error:
                failure = error
        raise failure or EngineUnavailable("no Triton replica is configured")

    async def units(
        self, organisation_id: UUID, collections: Sequence[UUID], question: str, count: int
    ) -> list[Unit]:
        """Return passages as prompt units, the nearest last to be dropped."""
        hits = await self.search(organisation_id, collections, question, count)
        return [
            Unit(
                messages=(
                    (
                        "passage",
                        f"chunk {hit.chunk_id}",
                        ChatMessage(role="user", content=f"From {hit.title}:\n{hit.text}"),
                    ),
                ),
                rank=1.0 + hit.score,
            )
            for hit in hits
        ]


def content_of(passage: Unit) -> str:
    """Return the words of a passage, as the model would read them."""
    return passage.messages[0][2].content


def with_content(passage: Unit, content: str) -> Unit:
    """Return a passage with other words."""
    kind, source, message = passage.messages[0]
    return replace(passage, messages=((kind, source, replace(message, content=content)),))
