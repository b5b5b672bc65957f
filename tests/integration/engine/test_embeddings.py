"""Embeddings on the same Triton."""

from __future__ import annotations

import math

import pytest

from inference.client import TritonClient

MODEL = "all-minilm-l6-v2"


def cosine(a: list[float], b: list[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


async def test_meaning(client: TritonClient) -> None:
    cat, kitten, tax = await client.embed(
        MODEL, ["A cat sits on the mat.", "The kitten is sitting on a rug.", "Tax law of 1998"]
    )
    assert len(cat) == 384
    assert cosine(cat, cat) == pytest.approx(1, abs=1e-5)
    assert cosine(cat, kitten) > 0.5 > cosine(cat, tax)


async def test_a_batch_gives_what_single_texts_give(client: TritonClient) -> None:
    texts = ["", "one", "two words", "longer " * 400, "🦙 漢字"] * 9
    together = await client.embed(MODEL, texts)
    for n in range(5):
        (alone,) = await client.embed(MODEL, [texts[n]])
        assert cosine(alone, together[n]) == pytest.approx(1, abs=1e-4)
        assert cosine(together[n], together[n + 40]) == pytest.approx(1, abs=1e-4)
    assert await client.embed(MODEL, []) == []


async def test_alive(client: TritonClient) -> None:
    await client.ping(MODEL)
    assert await client.server_ready()
