"""What the models under Triton can do through OpenAI's protocol, and what is refused by name."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from inference.tokenizers import ModelTokenizer, load_tokenizer
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, say
from tests.upstream import Served


@pytest.fixture(scope="module")
def tokenizer(stack: RunningStack) -> ModelTokenizer:
    return load_tokenizer(stack.settings.models_folder / "smollm2-135m-instruct")


WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "today's weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
CHOICE = '[[call text="{\\"tool\\": \\"weather\\", \\"arguments\\": {\\"city\\": \\"Ulm\\"}}"]]'


def asks(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def test_limits_and_stops_are_kept(sdk: openai.AsyncOpenAI) -> None:
    whole = await sdk.chat.completions.create(
        model="scripted", messages=asks(say("one two three")), temperature=0
    )
    assert whole.choices[0].message.content == "one two three"
    cut = await sdk.chat.completions.create(
        model="scripted", messages=asks(say("one two three")), max_completion_tokens=5
    )
    assert (cut.choices[0].message.content, cut.choices[0].finish_reason) == ("one t", "length")
    assert cut.usage is not None
    assert cut.usage.completion_tokens == 5
    stopped = await sdk.chat.completions.create(
        model="scripted", messages=asks(say("one two three")), stop=[" two"]
    )
    assert (stopped.choices[0].message.content, stopped.choices[0].finish_reason) == ("one", "stop")


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "weather"}}]
)
async def test_a_function_is_called_under_a_grammar(sdk: openai.AsyncOpenAI, choice: Any) -> None:
    asked: Any = {
        "model": "scripted",
        "messages": asks(f"The weather? {CHOICE}"),
        "tools": [WEATHER],
        "tool_choice": choice,
    }
    answer = await sdk.chat.completions.create(**asked)
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "Ulm"}
    assert answer.choices[0].finish_reason == "tool_calls"
    async with sdk.chat.completions.stream(**asked) as stream:
        final = await stream.get_final_completion()
    assert (final.choices[0].message.tool_calls or [])[0].function.name == "weather"


async def test_words_are_an_answer_where_functions_may_be_called(sdk: openai.AsyncOpenAI) -> None:
    words = '[[call text="No need."]]'
    answer = await sdk.chat.completions.create(
        model="scripted", messages=asks(words), tools=[WEATHER]
    )
    assert answer.choices[0].message.content == "No need."
    assert answer.choices[0].message.tool_calls is None


async def test_the_result_of_a_function_is_read(sdk: openai.AsyncOpenAI) -> None:
    first = await sdk.chat.completions.create(
        model="scripted", messages=asks(CHOICE + say("Sunny, then.")), tools=[WEATHER]
    )
    (call,) = first.choices[0].message.tool_calls or ()
    second = await sdk.chat.completions.create(
        model="scripted",
        messages=[
            *asks(CHOICE + say("Sunny, then.")),
            first.choices[0].message.model_dump(exclude_none=True),  # type: ignore[list-item]
            {"role": "tool", "tool_call_id": call.id, "content": "sunny"},
        ],
        tools=[WEATHER],
        tool_choice="none",
    )
    assert second.choices[0].message.content == "Sunny, then."


async def test_an_answer_is_held_to_a_schema(sdk: openai.AsyncOpenAI) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    answer = await sdk.chat.completions.create(
        model="scripted",
        messages=asks("A number, please."),
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": schema, "strict": True},
        },
    )
    assert json.loads(answer.choices[0].message.content or "") == {"n": 0}


async def test_what_an_engine_cannot_is_refused_by_name(sdk: openai.AsyncOpenAI) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"n": 2}, "n"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"1": 5}}, "logit_bias"),
        ({"reasoning_effort": "high"}, "reasoning_effort"),
    ]
    for fields, param in refused:
        with pytest.raises(openai.BadRequestError) as error:
            await sdk.chat.completions.create(model="scripted", messages=asks(say("x")), **fields)
        assert (error.value.param, error.value.code) == (param, "unsupported_parameter")
    with pytest.raises(openai.BadRequestError) as error:
        await sdk.completions.create(model="mock", prompt="x")
    assert error.value.param == "prompt"
    with pytest.raises(openai.BadRequestError) as error:
        await sdk.chat.completions.create(
            model="smollm2-135m-instruct", messages=asks("x " * 9_000), max_tokens=10
        )
    assert error.value.code == "context_length_exceeded"


async def test_a_bias_makes_a_token_certain_or_impossible(
    sdk: openai.AsyncOpenAI, caller: Caller, books: Any, tokenizer: ModelTokenizer
) -> None:
    (cat,) = tokenizer.encode(" cat")
    asked: Any = {"model": "smollm2-135m-instruct", "prompt": "The animal is a", "max_tokens": 3}
    asked |= {"temperature": 0}
    usual = await sdk.completions.create(**asked)
    forced = await sdk.completions.create(**asked, logit_bias={str(cat): 100})
    assert forced.choices[0].text == " cat cat cat"
    (first, *_) = tokenizer.encode(usual.choices[0].text)
    without = await sdk.completions.create(**asked, logit_bias={str(first): -100})
    assert tokenizer.encode(without.choices[0].text)[0] != first
    with pytest.raises(openai.BadRequestError) as error:
        await sdk.completions.create(**asked, logit_bias={str(tokenizer.size): 1})
    assert (error.value.param, error.value.code) == ("logit_bias", "invalid_value")
    rows = books.rows(
        "select * from model_calls where organisation_id = %s", caller.organisation_id
    )
    assert len(rows) == 3
    await books.assert_attempts_equal(rows)


async def test_a_real_model_answers_and_a_text_is_gone_on_with(sdk: openai.AsyncOpenAI) -> None:
    answer = await sdk.chat.completions.create(
        model="smollm2-135m-instruct",
        messages=asks("Say hello."),
        temperature=0,
        max_tokens=8,
    )
    assert answer.choices[0].message.content
    text = await sdk.completions.create(
        model="smollm2-135m-instruct", prompt="Once upon a", temperature=0, max_tokens=4, echo=True
    )
    assert text.object == "text_completion"
    assert text.choices[0].text.startswith("Once upon a")
    pieces = [
        chunk.choices[0].text
        async for chunk in await sdk.completions.create(
            model="smollm2-135m-instruct",
            prompt="Once upon a",
            temperature=0,
            max_tokens=4,
            stream=True,
        )
    ]
    assert "Once upon a" + "".join(pieces) == text.choices[0].text


async def test_vectors_are_floats_either_way(
    sdk: openai.AsyncOpenAI, caller: Caller, books: Any
) -> None:
    # The package asks for base64 by itself when nothing is said.
    for said in ({}, {"encoding_format": "float"}):
        made = await sdk.embeddings.create(
            model="all-minilm-l6-v2", input=["a text", "another text"], **said
        )
        assert [len(each.embedding) for each in made.data] == [384, 384]
        assert abs(sum(x * x for x in made.data[0].embedding) - 1) < 1e-3
        assert made.usage.prompt_tokens == 8
    rows = books.rows(
        "select * from model_calls where organisation_id = %s", caller.organisation_id
    )
    assert [row["uncached_input_tokens"] for row in rows] == [8, 8]
    books.assert_nothing_held(caller.organisation_id)


async def test_what_is_wrong_with_vectors_is_told_as_of_any_call(caller: Caller) -> None:
    asked = {"model": "all-minilm-l6-v2", "input": "x"}

    async def told(fields: dict[str, Any], **headers: str) -> tuple[int, str | None, str | None]:
        answer = await caller.http.post("/v1/embeddings", json=asked | fields, headers=headers)
        error = answer.json().get("error", {})
        return answer.status_code, error.get("code"), error.get("param")

    assert await told({"model": "scripted"}) == (404, "model_not_found", "model")
    assert await told({"dimensions": 3}) == (400, "unsupported_parameter", "dimensions")
    assert await told({"input": [[1, 2]]}) == (400, "unsupported_parameter", "input")
    once = {"Idempotency-Key": "once"}
    assert (await told({}, **once))[0] == 200
    assert (await told({"input": "y"}, **once))[:2] == (422, "idempotency_key_reused")
    limit = {"scope": "key", "scope_id": str(caller.key_id), "requests_per_minute": 1}
    assert (await caller.http.post("/v1/limits", json=limit)).status_code == 200
    while (answer := await caller.http.post("/v1/embeddings", json=asked)).status_code == 200:
        pass
    assert answer.json()["error"]["code"] == "rate_limit_exceeded"
    assert 0 < int(answer.headers["retry-after"]) <= 60
    assert answer.headers["x-should-retry"] == "true"
    assert answer.headers["x-ratelimit-limit-requests"] == "1"


async def test_a_call_goes_on_at_the_next_address_unless_it_is_the_request_that_is_refused(
    sdk: openai.AsyncOpenAI, upstream: Served
) -> None:
    asked = upstream.stats.requests
    for _ in range(6):
        made = await sdk.chat.completions.create(model="spread", messages=asks("hi"))
        assert made.choices[0].message.content == "tok " * 32
    assert upstream.stats.requests == asked + 6
    for number in range(1, 7):
        with pytest.raises(openai.BadRequestError):
            await sdk.chat.completions.create(model="spread-400", messages=asks("hi"))
        assert upstream.stats.requests == asked + 6 + number
