"""Responses: items, typed events in their order, and conversations that go on."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.integration.tasks.caller import Caller, say
from tests.upstream import Served


async def test_a_response_is_as_documented(strict: openai.AsyncOpenAI) -> None:
    made = await strict.responses.create(model="mock", input="hi", metadata={"a": "b"})
    assert (made.object, made.status) == ("response", "completed")
    assert made.output_text == "tok " * 32
    assert made.usage is not None
    assert made.usage.output_tokens == 32
    assert made.metadata == {"a": "b"}
    again = await strict.responses.retrieve(
        made.id, include=["message.output_text.logprobs"], include_obfuscation=False
    )
    assert again.output_text == made.output_text
    later = await strict.responses.retrieve(made.id)
    assert (later.completed_at, later.metadata) == (again.completed_at, {"a": "b"})
    assert again.completed_at is not None
    assert made.completed_at is not None
    assert abs(again.completed_at - made.completed_at) <= 1
    events = [event async for event in await strict.responses.retrieve(made.id, stream=True)]
    assert events[-1].type == "response.completed"
    assert events[-1].response == again
    for query, param in (
        ({"starting_after": "3"}, "starting_after"),
        ({"include[]": "reasoning.encrypted_content"}, "include[0]"),
        ({"background": "true"}, "background"),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await strict.responses.retrieve(made.id, extra_query=query)
        assert refused.value.param == param


async def test_events_come_in_their_order(caller: Caller) -> None:
    told: list[tuple[str, dict[str, Any]]] = []
    body = {"model": "mock", "input": "hi", "stream": True}
    async with caller.http.stream("POST", "/v1/responses", json=body) as response:
        name = ""
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                told.append((name, json.loads(line[6:])))
    kinds = [event["type"] for _, event in told]
    assert [name for name, _ in told] == kinds
    assert [event["sequence_number"] for _, event in told] == list(range(len(told)))
    order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert list(dict.fromkeys(kinds)) == order


async def test_the_stream_helper_reaches_the_end(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.responses.stream(model="mock", input="hi") as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "tok " * 32
    async with sdk.responses.stream(
        model="mock-tools",
        input="hi",
        tools=[{"type": "function", "name": "f", "parameters": {}, "strict": False}],
    ) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    calls = [item for item in final.output if item.type == "function_call"]
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", '{"y":2}'),
    ]


async def test_a_conversation_goes_on(sdk: openai.AsyncOpenAI, upstream: Served) -> None:
    first = await sdk.responses.create(
        model="mock", input=say("Nice to meet you, Ada."), instructions="Be kind."
    )
    second = await sdk.responses.create(
        model="mock", input="And my name?", previous_response_id=first.id, instructions="Be brief."
    )
    assert second.previous_response_id == first.id
    roles = [(m["role"], m["content"]) for m in upstream.stats.last_body["messages"]]
    assert roles == [
        ("system", "Be brief."),
        ("user", say("Nice to meet you, Ada.")),
        ("assistant", "Nice to meet you, Ada."),
        ("user", "And my name?"),
    ]


async def test_a_cut_answer_is_incomplete(sdk: openai.AsyncOpenAI) -> None:
    made = await sdk.responses.create(model="mock", input="hi", max_output_tokens=3)
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


async def test_what_an_engine_cannot_is_named_as_it_was_asked(caller: Caller) -> None:
    picture = {"type": "input_image", "image_url": "https://example.org/a.png"}
    function = {"type": "function", "name": "f"}
    for fields, param in (
        (
            {"input": [{"role": "user", "content": [picture]}], "instructions": "x"},
            "input[0].content[0]",
        ),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"reasoning": {"effort": "high"}}, "reasoning.effort"),
        ({"input": "x " * 9_000, "model": "smollm2-135m-instruct"}, "input"),
        ({"tools": [function], "text": {"format": {"type": "json_object"}}}, "text.format"),
    ):
        body = {"model": "scripted", "input": "hi", **fields}
        refused = await caller.http.post("/v1/responses", json=body)
        error = refused.json()["error"]
        assert (refused.status_code, error["param"]) == (400, param)


async def test_what_cannot_be_gone_on_from_is_told(sdk: openai.AsyncOpenAI) -> None:
    hidden = await sdk.responses.create(model="mock", input="hi", store=False)
    for previous in ("resp_none", hidden.id):
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="mock", input="x", previous_response_id=previous)
        assert refused.value.code == "previous_response_not_found"


async def test_a_stream_that_breaks_raises(sdk: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIError):
        async for _ in await sdk.responses.create(model="mock-cut", input="hi", stream=True):
            pass
