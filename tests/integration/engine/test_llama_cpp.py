"""A real model: resumed as if never cut, held to schemas, batched, cancelled."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest
from jsonschema import validate

from inference.client import TritonClient
from inference.errors import RequestRefused
from inference.messages import GenerationRequest
from inference.prompt import Sampling
from inference.templates import ChatMessage, encode_chat
from inference.tokenizers import ModelTokenizer
from tests.integration.engine.running import Told, collect, tell

MODEL = "smollm2-135m-instruct"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["calculator", "search"]},
        "expression": {"type": "string", "maxLength": 12},
    },
    "required": ["tool", "expression"],
}


def ask(tokenizer: ModelTokenizer, text: str) -> list[int]:
    return encode_chat(tokenizer, [ChatMessage("user", text)])


async def test_a_continuation_equals_the_uninterrupted_output(
    client: TritonClient, smollm: ModelTokenizer
) -> None:
    prompt = ask(smollm, "List three colours, one a line.")
    sampling = Sampling(max_tokens=32, repetition_penalty=1.1)
    whole = await tell(client, MODEL, prompt, sampling=sampling)
    assert whole.text == smollm.decode(whole.token_ids)
    for cut in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1, len(whole.token_ids)):
        told = whole.token_ids[:cut]
        rest = await tell(client, MODEL, prompt, sampling=sampling, generated_ids=told)
        assert told + rest.token_ids == whole.token_ids
        assert smollm.decode(told) + rest.text == whole.text
        assert rest.end.finish_reason == whole.end.finish_reason
        assert rest.end.completion_tokens == len(rest.token_ids)


async def test_prefixes_are_reused(client: TritonClient, smollm: ModelTokenizer) -> None:
    prompt = ask(smollm, "Say yes. " * 20)
    await tell(client, MODEL, prompt, sampling=Sampling(max_tokens=1))
    again = await tell(client, MODEL, prompt, sampling=Sampling(max_tokens=1))
    assert again.end.prompt_tokens == len(prompt)
    assert again.end.cached_tokens >= len(prompt) - 2


async def test_a_schema_holds_and_can_be_resumed(
    client: TritonClient, smollm: ModelTokenizer
) -> None:
    prompt = ask(smollm, "Call the calculator with 12*7, as JSON.")
    given = {"json_schema": json.dumps(SCHEMA), "sampling": Sampling(max_tokens=60)}
    whole = await tell(client, MODEL, prompt, **given)
    validate(json.loads(whole.text), SCHEMA)
    assert whole.end.finish_reason == "stop"
    for cut in (1, 4, len(whole.token_ids) - 2):
        told = whole.token_ids[:cut]
        rest = await tell(client, MODEL, prompt, generated_ids=told, **given)
        assert told + rest.token_ids == whole.token_ids


async def test_characters_that_span_tokens(client: TritonClient, smollm: ModelTokenizer) -> None:
    words = "🦙🦙 héllo ʘ 漢字"
    given = {"grammar": f'root ::= "{words}"', "sampling": Sampling(max_tokens=60)}
    prompt = ask(smollm, "Write something.")
    whole = await tell(client, MODEL, prompt, **given)
    assert whole.text == words
    assert smollm.decode(whole.token_ids) == words
    assert whole.end.completion_tokens == len(whole.token_ids)
    assert all("�" not in text for text in whole.texts)
    # Cut inside a character by the limit: the tokens are told, the half character is not.
    cut = await tell(
        client, MODEL, prompt, grammar=given["grammar"], sampling=Sampling(max_tokens=2)
    )
    assert (len(cut.token_ids), cut.text) == (2, "")
    assert (cut.end.finish_reason, cut.end.completion_tokens) == ("length", 2)
    with pytest.raises(RequestRefused) as refusal:
        await tell(client, MODEL, prompt, generated_ids=cut.token_ids, **given)
    assert refusal.value.code == "cannot_resume"


async def test_stop_strings_and_limits(client: TritonClient, smollm: ModelTokenizer) -> None:
    prompt = ask(smollm, "Write something.")
    grammar = 'root ::= "one two\\nUser: three"'
    sampling = Sampling(max_tokens=60, stop=("\nUser:",))
    told = await tell(client, MODEL, prompt, grammar=grammar, sampling=sampling)
    assert told.text == "one two"
    assert (told.end.finish_reason, told.end.stop_reason) == ("stop", "\nUser:")
    long = await tell(
        client, MODEL, ask(smollm, "Say OK."), sampling=Sampling(max_tokens=24, min_tokens=20)
    )
    assert long.end.completion_tokens >= 20
    forced = await tell(
        client, MODEL, ask(smollm, "Say OK."), sampling=Sampling(max_tokens=24, ignore_eos=True)
    )
    assert (forced.end.finish_reason, forced.end.completion_tokens) == ("length", 24)


async def test_seeds_repeat(client: TritonClient, smollm: ModelTokenizer) -> None:
    prompt = ask(smollm, "Invent a name.")
    sampling = Sampling(max_tokens=12, temperature=1.5, top_p=0.95, seed=7)
    one, two = [await tell(client, MODEL, prompt, sampling=sampling) for _ in range(2)]
    assert one.token_ids == two.token_ids


async def test_requests_run_side_by_side(client: TritonClient, smollm: ModelTokenizer) -> None:
    """All begin before any ends: nobody waits for a neighbour's last token."""
    sampling = Sampling(max_tokens=24, ignore_eos=True)
    began, ended = [], []

    async def one(n: int) -> None:
        told = Told()
        request = GenerationRequest(
            MODEL, f"side{n}@1", ask(smollm, f"Count from {n}."), sampling=sampling
        )
        started = time.perf_counter()
        await collect(client, request, told)
        began.append(started + told.first_s)
        ended.append(time.perf_counter())
        assert len(told.token_ids) == 24

    await asyncio.gather(*(one(n) for n in range(4)))
    assert max(began) < min(ended)


async def test_leaving_frees_the_slots(client: TritonClient, smollm: ModelTokenizer) -> None:
    """Twice as many as there are slots leave; the next one finds a free slot at once."""

    async def leave(n: int) -> None:
        request = GenerationRequest(
            MODEL,
            f"gone{n}@1",
            ask(smollm, f"Count from {n} to a thousand."),
            sampling=Sampling(max_tokens=2000, ignore_eos=True),
        )
        stream = client.generate(request)
        await anext(stream)
        await stream.aclose()

    await asyncio.gather(*(leave(n) for n in range(16)))
    left = time.perf_counter()
    states = set()
    while states != {"cancelled"}:
        readings = [await client.meter(MODEL, f"gone{n}@1") for n in range(16)]
        states = {reading.state for reading in readings if reading}
        assert time.perf_counter() - left < 2
        await asyncio.sleep(0.01)
    told = await tell(client, MODEL, ask(smollm, "Say OK."), sampling=Sampling(max_tokens=2))
    assert told.end.timings.queue_ms < 1000


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"input_ids": []}, "empty_prompt"),
        ({"input_ids": [9] * 4000}, "prompt_too_long"),
        ({"input_ids": [9], "json_schema": '{"type": "frob"}'}, "bad_schema"),
        ({"input_ids": [9], "grammar": "root ::= ("}, "bad_grammar"),
        ({"input_ids": [9], "grammar": "%llguidance {}\nstart: /a+/"}, "bad_grammar"),
        ({"input_ids": [9], "lora_name": "nobody"}, "unknown_lora"),
        (
            {"input_ids": [9], "grammar": 'root ::= "a"', "generated_ids": [50]},
            "cannot_resume",
        ),
    ],
)
async def test_refusals(client: TritonClient, given: dict[str, Any], code: str) -> None:
    with pytest.raises(RequestRefused) as refusal:
        await tell(client, MODEL, **given)
    assert refusal.value.code == code
    await client.ping(MODEL)
