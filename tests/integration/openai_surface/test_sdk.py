"""What the official package needs of an answer, point by point, on an upstream with faults."""

from __future__ import annotations

import json
from typing import Any

import httpx2
import openai
import pytest

from tests.integration.openai_surface.conftest import client_of
from tests.integration.tasks.caller import Caller, say
from tests.upstream import Served

HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {
    "type": "function",
    "function": {"name": "f", "parameters": {"type": "object", "properties": {}}},
}


async def post(caller: Caller, body: Any, path: str = "/v1/chat/completions") -> httpx2.Response:
    """Send a body as it is."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await caller.http.post(path, content=raw, headers={"content-type": "application/json"})


async def events(caller: Caller, model: str, **fields: Any) -> list[str]:
    """The lines of a stream that have something."""
    body = {"model": model, "messages": HI, "stream": True, **fields}
    async with caller.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        return [line async for line in response.aiter_lines() if line]


def chunks(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in lines if line != "data: [DONE]"]


async def test_a_plain_answer_is_as_documented(strict: openai.AsyncOpenAI) -> None:
    raw = await strict.chat.completions.with_raw_response.create(model="mock", messages=HI)
    answer = raw.parse()
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.content == "tok " * 32
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 1 + 32
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0
    assert raw.headers["x-request-id"] != "req_scripted"
    assert raw.headers["x-overline-model"] == "mock"
    assert raw.headers["x-overline-cache"] == "miss"
    assert raw.headers["x-overline-cost-usd"] == "0.000065000"
    assert answer.id == "chatcmpl-" + raw.headers["x-overline-task"].replace("-", "")
    for what in ("limit", "remaining", "reset"):
        assert f"x-ratelimit-{what}-requests" in raw.headers
        assert f"x-ratelimit-{what}-tokens" in raw.headers


async def test_tool_calls_have_no_content(strict: openai.AsyncOpenAI) -> None:
    answer = await strict.chat.completions.create(model="mock-tools", messages=HI, tools=[TOOL])
    message = answer.choices[0].message
    assert message.content is None
    assert [call.id for call in message.tool_calls or ()] == ["call_a", "call_b"]
    assert answer.choices[0].finish_reason == "tool_calls"


async def test_a_conversation_reaches_the_upstream_unchanged(
    caller: Caller, upstream: Served
) -> None:
    messages = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "call_a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "call_a", "content": "ok"},
    ]
    asked = {
        "model": "mock",
        "messages": messages,
        "seed": 7,
        "stop": ["x"],
        "logit_bias": {"5": 1},
    }
    assert (await post(caller, asked)).status_code == 200
    body = upstream.stats.last_body
    assert body["messages"] == messages
    assert {name: body[name] for name in ("seed", "stop", "logit_bias")} == {
        "seed": 7,
        "stop": ["x"],
        "logit_bias": {"5": 1},
    }
    assert "user" not in body


@pytest.mark.parametrize("token", ["sk-wrong-0123456789abcdef", f"ol_{'0' * 32}_{'A' * 43}"])
async def test_a_bad_key_is_a_401_and_not_echoed(caller: Caller, token: str) -> None:
    async with client_of(caller) as client:
        with pytest.raises(openai.AuthenticationError) as refused:
            await client.with_options(api_key=token).chat.completions.create(
                model="mock", messages=HI
            )
    assert refused.value.code == "invalid_api_key"
    assert token not in str(refused.value.body) + str(refused.value)
    assert refused.value.request_id


async def test_an_unknown_model_is_a_404(sdk: openai.AsyncOpenAI) -> None:
    for model, code in (("no-such-model", "model_not_found"), ("unpriced", "model_unpriced")):
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.chat.completions.create(model=model, messages=HI)
        assert (refused.value.code, refused.value.param) == (code, "model")


BAD: list[Any] = [
    b"{not json",
    b"[1,2]",
    b'{"model":"mock","messages":[{"role":"user","content":"\xff\xfe"}]}',
    b'{"model":"mock","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"mock","messages":[{"role":"user","content":"a\\u0000b"}]}',
    b'{"model":"mock","messages":[{"role":"user","content":"x"}],"temperature":NaN}',
    b'{"model":"mock","messages":' + b"[" * 70 + b"]" * 70 + b"}",
    {"model": "mock"},
    {"model": "mock", "messages": [{"role": "robot", "content": "x"}]},
    {"model": "mock", "messages": HI, "max_tokens": -5},
    {"model": "scripted", "messages": HI, "n": 2},
    {"model": "scripted", "messages": HI, "logprobs": True},
    {
        "model": "scripted",
        "messages": [
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
        ],
    },
]


ODD: list[tuple[str, Any, str | None]] = [
    ("/v1/responses", {"model": "mock"}, "input"),
    ("/v1/responses", [], None),
    ("/v1/responses", {"model": "mock", "input": 7}, "input"),
    ("/v1/responses", {"model": "mock", "input": [{"role": "user"}]}, "input[0].content"),
    ("/v1/chat/completions", [], None),
    ("/v1/chat/completions", "mock", None),
    (
        "/v1/chat/completions",
        {"model": "mock", "messages": [{"role": "user", "content": [{"type": "smell"}]}]},
        "messages[0].content[0].type",
    ),
    (
        "/v1/chat/completions",
        {"model": "mock", "messages": HI, "temperature": "hot"},
        "temperature",
    ),
    ("/v1/completions", {"model": "smollm2-135m-instruct"}, "prompt"),
    ("/v1/embeddings", {"model": "all-minilm-l6-v2"}, "input"),
]


async def test_bad_input_gets_openais_error_and_nothing_is_held(
    caller: Caller, stack: Any, upstream: Served, books: Any
) -> None:
    asked = upstream.stats.requests
    bad: list[tuple[str, Any, str | None]] = [("/v1/chat/completions", body, None) for body in BAD]
    for path, body, param in [*bad, *ODD]:
        answer = await post(caller, body, path)
        assert answer.status_code in (400, 413, 415), answer.text
        error = answer.json()["error"]
        assert {"message", "type", "param", "code"} <= set(error)
        assert error["type"] == "invalid_request_error"
        assert error["code"]
        assert error["request_id"] == answer.headers["x-request-id"]
        if param:
            assert error["param"] == param, answer.text
    assert upstream.stats.requests == asked
    holds = books.rows(
        "select count(*) as n from holds where organisation_id = %s", caller.organisation_id
    )
    assert holds[0]["n"] == 0


async def test_a_body_that_is_too_large_is_a_413(caller: Caller) -> None:
    body = {"model": "mock", "messages": [{"role": "user", "content": "x " * 1_500_000}]}
    answer = await post(caller, body)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"


async def test_an_upstreams_limit_and_fault_are_told_once(
    sdk: openai.AsyncOpenAI, upstream: Served
) -> None:
    before = upstream.stats.by_model.get("mock-429", 0)
    with pytest.raises(openai.RateLimitError) as busy:
        await sdk.chat.completions.create(model="mock-429", messages=HI)
    assert busy.value.response.headers["retry-after"] == "7"
    assert upstream.stats.by_model["mock-429"] == before + 1
    for stream in (False, True):
        with pytest.raises(openai.InternalServerError) as broken:
            await sdk.chat.completions.create(model="mock-500", messages=HI, stream=stream)
        assert broken.value.request_id not in (None, "req_scripted")
    for model in ("mock-401", "mock-404"):
        with pytest.raises(openai.InternalServerError) as denied:
            await sdk.chat.completions.create(model=model, messages=HI)
        assert denied.value.code == "upstream_denied"


async def test_a_stream_is_framed_as_openais(caller: Caller) -> None:
    lines = await events(caller, "mock", stream_options={"include_usage": True})
    assert lines[-1] == "data: [DONE]"
    assert lines.count("data: [DONE]") == 1
    assert all(line.startswith("data: ") for line in lines)
    told = chunks(lines)
    assert len({(chunk["id"], chunk["model"], chunk["created"]) for chunk in told}) == 1
    assert {chunk["object"] for chunk in told} == {"chat.completion.chunk"}
    *spoken, last = told
    assert spoken[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in spoken) == "tok " * 32
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in spoken]
    assert reasons[-1] == "stop"
    assert set(reasons[:-1]) == {None}
    assert [chunk["usage"] for chunk in spoken] == [None] * len(spoken)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 32


async def test_usage_is_told_when_it_was_asked_for(caller: Caller) -> None:
    silent = chunks(await events(caller, "mock"))
    assert all("usage" not in chunk and chunk["choices"] for chunk in silent)
    for model in ("mock-odd", "mock-finish"):
        told = chunks(await events(caller, model, stream_options={"include_usage": True}))
        assert told[-1]["usage"]["completion_tokens"] == 32


async def test_the_stream_helper_rebuilds_parallel_calls(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.chat.completions.stream(model="mock-tools", messages=HI) as stream:
        final = await stream.get_final_completion()
    calls = final.choices[0].message.tool_calls or []
    assert [(c.id, c.function.name, c.function.arguments) for c in calls] == [
        ("call_a", "f", '{"x":1}'),
        ("call_b", "g", '{"y":2}'),
    ]


@pytest.mark.parametrize("fault", ["mock-inband", "mock-late", "mock-cut"])
async def test_a_stream_that_breaks_is_an_error_without_a_last_line(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Any, fault: str
) -> None:
    said: list[str] = []

    async def read() -> None:
        async for chunk in await sdk.chat.completions.create(model=fault, messages=HI, stream=True):
            said.append(chunk.choices[0].delta.content or "")

    with pytest.raises(openai.APIError):
        await read()
    if fault == "mock-inband":
        return
    text = "".join(said)
    assert text
    assert ("tok " * 16).startswith(text)
    lines = await events(caller, fault)
    assert "data: [DONE]" not in lines
    (row,) = books.rows(
        "select * from model_calls where organisation_id = %s order by started_at desc limit 1",
        caller.organisation_id,
    )
    assert (row["outcome"], row["billed_usd"]) == ("failed", 0)
    assert 0 < row["output_tokens"] <= 16
    books.assert_nothing_held(caller.organisation_id)


async def test_models_are_listed_and_read(strict: openai.AsyncOpenAI) -> None:
    page = await strict.models.list()
    names = {model.id for model in page.data}
    assert {"scripted", "named", "default", "after-500"} <= names
    # Neither what stands for names that nobody can list, nor what is never served.
    assert not names & {"mock*", "free*", "unpriced"}
    assert (await strict.models.retrieve("mock-anything")).id == "mock-anything"
    for name in ("no-such-model", "mock*", "unpriced"):
        with pytest.raises(openai.NotFoundError) as missing:
            await strict.models.retrieve(name)
        assert missing.value.code == "model_not_found"


async def test_an_unknown_path_has_an_error_object_and_is_a_problem(caller: Caller) -> None:
    answer = await post(caller, {}, "/v1/no/such/route")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"
    assert answer.json()["code"] == "OVL-1004"
    assert (await post(caller, {}, "/v1/chat/nothing")).json()["error"]["code"] == "unknown_url"


async def test_an_answer_is_read_again_by_its_id(
    sdk: openai.AsyncOpenAI, caller: Caller, stack: Any
) -> None:
    first = await sdk.chat.completions.create(
        model="scripted", messages=[{"role": "user", "content": say("Kept.")}]
    )
    again = await sdk.chat.completions.retrieve(first.id)
    assert again.choices[0].message.content == "Kept."
    assert again.usage == first.usage
    hidden = await sdk.chat.completions.create(model="mock", messages=HI, store=False)
    other = Caller.made(stack.admin_url, caller.base_url)
    async with client_of(other) as theirs:
        for client, own_id in ((sdk, hidden.id), (sdk, "chatcmpl-x"), (theirs, first.id)):
            with pytest.raises(openai.NotFoundError):
                await client.chat.completions.retrieve(own_id)
    await other.http.aclose()
