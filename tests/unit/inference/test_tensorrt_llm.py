"""The TensorRT-LLM engine against a double with the LLM API's documented signatures.

It has not run on a GPU; see `inference.engines.tensorrt_llm`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.engines.base import EngineRefusal, Step
from inference.engines.tensorrt_llm import TensorRtLlmEngine, TensorRtSettings
from inference.prompt import Prompt, Sampling
from inference.vocabulary import Vocabulary
from tests.unit.inference import trtllm_double as double


@pytest.fixture
async def engine(vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch) -> TensorRtLlmEngine:
    monkeypatch.setattr(double.LLM, "script", [[104], [105, 33], [257]])
    settings = TensorRtSettings("checkpoint", slots=7, adapters={"b": "/b", "a": "/a"})
    engine = TensorRtLlmEngine(vocabulary, settings, api=double)
    await engine.start()
    return engine


async def steps(engine: TensorRtLlmEngine, **prompt: Any) -> list[Step]:
    given = Prompt(request_id="r", input_ids=[1, 2], **prompt)
    return [step async for step in engine.generate(given)]


async def test_streams_what_is_new(engine: TensorRtLlmEngine) -> None:
    found = await steps(engine)
    assert [step.token_ids for step in found] == [[104], [105, 33], [257]]
    assert [step.ended for step in found] == [None, None, "stop"]
    assert found[0].prompt_tokens == 2
    assert found[0].cached_tokens == 3
    assert engine._llm.requests[0]["streaming"] is True
    assert engine._llm.options["max_batch_size"] == 7
    assert engine._llm.options["kv_cache_config"].enable_block_reuse is True


async def test_continues_what_was_generated(engine: TensorRtLlmEngine) -> None:
    sampling = Sampling(max_tokens=10, min_tokens=4, temperature=0.7, seed=5)
    await steps(engine, generated_ids=[7, 8], sampling=sampling)
    asked = engine._llm.requests[0]
    assert asked["inputs"] == [1, 2, 7, 8]
    assert asked["sampling"].max_tokens == 8
    assert asked["sampling"].min_tokens == 2
    # Other random numbers than the first attempt drew, but the same every time.
    assert asked["sampling"].seed == 7
    assert asked["sampling"].top_p == 1.0


async def test_greedy(engine: TensorRtLlmEngine) -> None:
    await steps(engine)
    sampling = engine._llm.requests[0]["sampling"]
    assert (sampling.top_k, sampling.temperature) == (1, None)


async def test_constraints(engine: TensorRtLlmEngine) -> None:
    schema = json.dumps({"enum": ["hi", "ho"]})
    await steps(engine, json_schema=schema)
    await steps(engine, json_schema=schema, generated_ids=list(b'"h'))
    whole, rest = (r["sampling"].guided_decoding.grammar for r in engine._llm.requests)
    assert "hi" in whole
    assert rest.startswith(("root ::= [i]", "root ::= [o]"))
    with pytest.raises(EngineRefusal) as refusal:
        await steps(engine, json_schema=schema, generated_ids=list(b'"x'))
    assert refusal.value.code == "cannot_resume"


async def test_adapters(engine: TensorRtLlmEngine) -> None:
    await steps(engine, lora_name="b")
    assert engine._llm.requests[0]["lora"] == double.LoRARequest("b", 2, "/b")
    with pytest.raises(EngineRefusal) as refusal:
        await steps(engine, lora_name="c")
    assert refusal.value.code == "unknown_lora"


async def test_closing_aborts(engine: TensorRtLlmEngine) -> None:
    running = engine.generate(Prompt(request_id="r", input_ids=[1]))
    await anext(running)
    await running.aclose()
    assert engine._llm.results[0].aborted
    llm = engine._llm
    await engine.close()
    assert llm.down


async def test_an_end_nobody_asked_for_is_a_failure(
    engine: TensorRtLlmEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(double.LLM, "reason", "timeout")
    with pytest.raises(RuntimeError, match="timeout"):
        await steps(engine)
