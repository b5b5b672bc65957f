"""Limits, resuming and cancelling around an engine, with the scripted one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from inference.detokenizer import TextStream
from inference.engines.base import EngineRefusal
from inference.engines.scripted import ScriptedEngine
from inference.generation import Chunk, generate
from inference.meter import Meter, Reading
from inference.prompt import Prompt, Sampling, pack_prompt, unpack_prompt
from inference.tokenizers import ModelTokenizer
from inference.vocabulary import Vocabulary


class Bench:
    """An engine, a meter, and prompts in plain text."""

    def __init__(self, vocabulary: Vocabulary, tokenizer: ModelTokenizer, folder: Path) -> None:
        self.vocabulary = vocabulary
        self.tokenizer = tokenizer
        self.meter = Meter(folder)
        self.engine = ScriptedEngine(vocabulary, folder)

    def chunks(self, said: str, **prompt: Any) -> Any:
        prompt = {"request_id": "r@1", "input_ids": self.tokenizer.encode(said)} | prompt
        prompt.setdefault("sampling", Sampling(max_tokens=1000))
        now = time.perf_counter_ns()
        return generate(self.engine, self.vocabulary, self.meter, Prompt(**prompt), now)

    async def run(self, said: str, **prompt: Any) -> tuple[list[int], str, Chunk]:
        found: list[Chunk] = [chunk async for chunk in self.chunks(said, **prompt)]
        ids = [token_id for chunk in found for token_id in chunk.token_ids]
        return ids, "".join(chunk.text for chunk in found), found[-1]


@pytest.fixture
def bench(vocabulary: Vocabulary, tokenizer: ModelTokenizer, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(vocabulary, tokenizer, tmp_path)
    yield bench
    bench.meter.close()


SAY = '[[say text="héllo 🦙 wörld"]]'
SAID = "héllo 🦙 wörld"


async def test_plays_counts_and_ends(bench: Bench) -> None:
    ids, text, last = await bench.run(SAY)
    assert text == SAID
    assert last.end is not None
    assert last.end.finish_reason == "stop"
    assert last.end.completion_tokens == len(ids) == len(SAID.encode()) + 1
    assert last.end.prompt_tokens == len(SAY.encode())
    assert bench.meter.read("r@1") == Reading(len(SAY.encode()), 0, len(ids), "finished", 1)


async def test_resumes_after_every_token(bench: Bench) -> None:
    whole, _, _ = await bench.run(SAY)
    vocabulary = bench.vocabulary
    for cut in range(len(whole) + 1):
        told = vocabulary.join(whole[:cut]).decode("utf-8", "ignore")
        ids, text, last = await bench.run(SAY, generated_ids=whole[:cut])
        assert whole[:cut] + ids == whole
        assert told + text == SAID
        assert last.end is not None
        assert last.end.finish_reason == "stop"
        assert last.end.completion_tokens == len(ids)


async def test_resumes_with_text_held_back_for_a_stop_string(bench: Bench) -> None:
    say = '[[say text="one\\nUsual\\nUser: two"]]'
    sampling = Sampling(max_tokens=99, stop=("\nUser:",))
    whole, text, last = await bench.run(say, sampling=sampling)
    assert text == "one\nUsual"
    assert last.end is not None
    assert (last.end.finish_reason, last.end.stop_reason) == ("stop", "\nUser:")
    for cut in range(len(whole) + 1):
        # What a reader had been told at that point, held-back text left out.
        stream = TextStream(bench.vocabulary, sampling.stop)
        told = "".join(stream.feed(token_id) for token_id in whole[:cut])
        ids, rest, _ = await bench.run(say, sampling=sampling, generated_ids=whole[:cut])
        assert whole[:cut] + ids == whole
        assert told + rest == text


async def test_max_tokens_counts_earlier_attempts(bench: Bench) -> None:
    sampling = Sampling(max_tokens=5)
    whole, text, last = await bench.run('[[say text="abcdefgh"]]', sampling=sampling)
    assert (text, len(whole)) == ("abcde", 5)
    assert last.end is not None
    assert last.end.finish_reason == "length"
    ids, text, last = await bench.run(
        '[[say text="abcdefgh"]]', sampling=sampling, generated_ids=whole[:3]
    )
    assert (text, len(ids)) == ("de", 2)
    _, text, last = await bench.run(
        '[[say text="abcdefgh"]]', sampling=sampling, generated_ids=whole
    )
    assert (text, last.end and last.end.finish_reason) == ("", "length")


async def test_stop_token(bench: Bench) -> None:
    sampling = Sampling(max_tokens=99, stop_token_ids=(ord("c"),))
    ids, text, last = await bench.run('[[say text="abcd"]]', sampling=sampling)
    assert ids == list(b"abc")
    assert last.end is not None
    assert (last.end.finish_reason, last.end.stop_reason) == ("stop", str(ord("c")))
    assert text == "abc"


@pytest.mark.parametrize(
    ("prompt", "code"),
    [
        ({"input_ids": []}, "empty_prompt"),
        ({"input_ids": [65] * 200_000}, "prompt_too_long"),
        ({"input_ids": [99999]}, "bad_request"),
        ({"input_ids": [-1]}, "bad_request"),
        ({"sampling": Sampling(max_tokens=0)}, "bad_sampling"),
        ({"sampling": Sampling(temperature=float("nan"))}, "bad_sampling"),
        ({"sampling": Sampling(top_p=0)}, "bad_sampling"),
        ({"sampling": Sampling(stop=("",))}, "bad_sampling"),
        ({"json_schema": "{}", "grammar": 'root ::= "a"'}, "bad_grammar"),
        ({"lora_name": "nobody"}, "unknown_lora"),
    ],
)
async def test_refusals(bench: Bench, prompt: dict[str, Any], code: str) -> None:
    with pytest.raises(EngineRefusal) as refusal:
        await bench.run("hello", **prompt)
    assert refusal.value.code == code


async def test_closing_is_a_cancellation(bench: Bench) -> None:
    chunks = bench.chunks('[[say text="ab" tokens=500 pace_ms=1]]')
    seen = 0
    async for chunk in chunks:
        seen += len(chunk.token_ids)
        if seen == 3:
            break
    await chunks.aclose()
    reading = bench.meter.read("r@1")
    assert reading is not None
    assert (reading.state, reading.completion_tokens) == ("cancelled", 3)


async def test_a_cancelled_task_is_a_cancellation(bench: Bench) -> None:
    task = asyncio.create_task(bench.run('[[say text="ab" tokens=500 pace_ms=1]]'))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    reading = bench.meter.read("r@1")
    assert reading is not None
    assert reading.state == "cancelled"


async def test_an_engine_that_breaks_is_metered_as_failed(bench: Bench) -> None:
    with pytest.raises(RuntimeError):
        await bench.run('[[say text="abcdef" fail=3]]')
    assert bench.meter.read("r@1") == Reading(
        len('[[say text="abcdef" fail=3]]'), 0, 3, "failed", 1
    )


async def test_a_fault_happens_once(bench: Bench) -> None:
    say = '[[say text="abc" fail=1 once="x"]]'
    with pytest.raises(RuntimeError):
        await bench.run(say)
    assert (await bench.run(say))[1] == "abc"


async def test_turns_and_calls(bench: Bench, tokenizer: ModelTokenizer) -> None:
    script = '[[call text="{}"]] [[say text="first"]] [[say text="second"]]'
    one = tokenizer.encode(f"<|im_start|>user\n{script}<|im_end|>\n<|im_start|>assistant\n", True)
    two = one + tokenizer.encode("first<|im_end|>\n<|im_start|>assistant\n", True)
    assert (await bench.run("", input_ids=one))[1] == "first"
    assert (await bench.run("", input_ids=two))[1] == "second"
    assert (await bench.run("", input_ids=two, json_schema="{}"))[1] == "{}"
    assert (await bench.run("plain"))[1] == "OK."
    schema = '{"type": "object", "properties": {"a": {"enum": [5]}}, "required": ["a"]}'
    assert (await bench.run("plain", json_schema=schema))[1] == '{"a": 5}'


async def test_one_directive_counts_on_from_the_newest_result(
    bench: Bench, tokenizer: ModelTokenizer
) -> None:
    script = '[[say text="{next}+0" pace_ms=0]]'
    prompt = f"<|im_start|>user\n{script}<|im_end|>\n<|im_start|>assistant\n"
    for results, said in (((), "0+0"), ((0,), "1+0"), ((7, 41), "42+0")):
        told = "".join(
            f"<|im_start|>user\nResult of calculator: ({n}+0) {n}+0 = {n}<|im_end|>\n"
            for n in results
        )
        ids = tokenizer.encode(told + prompt, True)
        assert (await bench.run("", input_ids=ids))[1] == said


async def test_results_of_calls_that_one_turn_asked_for_are_one_turn(
    bench: Bench, tokenizer: ModelTokenizer
) -> None:
    script = "".join(f'[[say text="{n}"]]' for n in (1, 2, 3, 4))
    told = "".join(
        f"<|im_start|>user\nResult of a.tool: {result}<|im_end|>\n"
        for result in ("(1) one", "also (2) two", "also (3) three", "(4) four")
    )
    prompt = f"{told}<|im_start|>user\n{script}<|im_end|>\n<|im_start|>assistant\n"
    assert (await bench.run("", input_ids=tokenizer.encode(prompt, True)))[1] == "3"


def test_a_prompt_survives_the_wire() -> None:
    prompt = Prompt(
        request_id="r@1",
        input_ids=[1, 2],
        generated_ids=[3],
        sampling=Sampling(
            max_tokens=7,
            temperature=0.5,
            seed=9,
            stop=("é", "\n"),
            stop_token_ids=(4,),
            ignore_eos=True,
            biased_ids=(5, 6),
            biases=(-100.0, 2.5),
        ),
        json_schema="{}",
    )
    wire = {
        tensor.name: tensor.unpack(tensor.pack(values)) for tensor, values in pack_prompt(prompt)
    }
    assert unpack_prompt("r@1", wire.get) == prompt
