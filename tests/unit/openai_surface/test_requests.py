"""What may be asked, and what is said about everything else: by name, in OpenAI's words."""

from __future__ import annotations

import contextlib
import inspect
import re
from typing import Any

import pytest
from openai.resources.chat.completions import Completions
from openai.resources.completions import Completions as TextCompletions
from openai.resources.embeddings import Embeddings
from openai.resources.responses import Responses
from pydantic import BaseModel

from api.openai.chat import ChatRequest, read_chat
from api.openai.completions import CompletionRequest, read_completion
from api.openai.embeddings import EmbeddingRequest, embedding_answer, read_embedding
from api.openai.errors import OpenAIError
from api.openai.responses import ResponseRequest, read_response
from api.openai.specs import chat_call, response_call

MESSAGES = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
OF_THE_CLIENT = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}


@pytest.mark.parametrize(
    ("model", "create"),
    [
        (ChatRequest, Completions.create),
        (CompletionRequest, TextCompletions.create),
        (EmbeddingRequest, Embeddings.create),
        (ResponseRequest, Responses.create),
    ],
)
def test_every_parameter_of_the_official_package_is_known_by_name(
    model: type[BaseModel], create: Any
) -> None:
    documented = set(inspect.signature(create).parameters) - OF_THE_CLIENT
    assert documented <= set(model.model_fields)


def call(name: str = "a") -> dict[str, Any]:
    return {"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f"} | fields}


def picture(**fields: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": "https://example.org/a.png"} | fields}


def schema(**fields: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "n", "schema": {}} | fields}


BAD_CHATS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "invalid_type", "messages"),
    ({"messages": []}, "empty_array", "messages"),
    ({"messages": "nope"}, "invalid_type", "messages"),
    ({"messages": [None, 5]}, "invalid_type", "messages[0]"),
    ({"messages": [{"content": "x"}]}, "missing_required_parameter", "messages[0].role"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "assistant", "content": None}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "empty_array", "messages[0].content"),
    (
        {"messages": [{"role": "user", "content": [{"type": "hologram"}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "tool", "content": "x"}]},
        "missing_required_parameter",
        "messages[0].tool_call_id",
    ),
    (
        {"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]},
        "invalid_value",
        "messages[0].tool_call_id",
    ),
    (
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [call()]}, *MESSAGES]},
        "invalid_value",
        "messages[0].tool_calls",
    ),
    ({"max_tokens": -1}, "below_min_value", "max_tokens"),
    ({"max_tokens": "many"}, "invalid_type", "max_tokens"),
    ({"max_tokens": 1, "max_completion_tokens": 1}, "invalid_value", "max_tokens"),
    ({"temperature": 99}, "above_max_value", "temperature"),
    ({"temperature": float("nan")}, "invalid_value", "temperature"),
    ({"n": 0}, "below_min_value", "n"),
    ({"n": True}, "invalid_type", "n"),
    ({"top_p": -0.1}, "below_min_value", "top_p"),
    ({"max_tokens": 5, "min_tokens": 50}, "invalid_value", "min_tokens"),
    ({"stop": ["x"] * 100}, "array_above_max_length", "stop"),
    ({"stream": "yes"}, "invalid_type", "stream"),
    ({"stream_options": {"include_usage": True}}, "invalid_value", "stream_options"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    ({"tools": []}, "empty_array", "tools"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].function.name"),
    ({"tool_choice": "auto"}, "invalid_value", "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "invalid_value",
        "tool_choice.function.name",
    ),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "missing_required_parameter",
        "response_format.json_schema.schema",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": ["text"], "text": "x"}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "zz": 1}]}]},
        "unknown_parameter",
        "messages[0].content[0].zz",
    ),
    (
        {"messages": [{"role": "user", "content": [picture(z=1)]}]},
        "unknown_parameter",
        "messages[0].content[0].image_url.z",
    ),
    (
        {"messages": [{"role": "user", "content": [picture(detail="vast")]}]},
        "invalid_value",
        "messages[0].content[0].image_url.detail",
    ),
    (
        {"messages": [{"role": "assistant", "tool_calls": [call() | {"zz": 1}]}]},
        "unknown_parameter",
        "messages[0].tool_calls[0].zz",
    ),
    ({"tools": [TOOL | {"zz": 1}]}, "unknown_parameter", "tools[0].zz"),
    ({"tools": [function(zz=1)]}, "unknown_parameter", "tools[0].function.zz"),
    ({"tools": [function(strict="yes")]}, "invalid_type", "tools[0].function.strict"),
    (
        {"response_format": {"type": "json_object", "zz": 1}},
        "unknown_parameter",
        "response_format.zz",
    ),
    (
        {"response_format": schema(description=["x"])},
        "invalid_type",
        "response_format.json_schema.description",
    ),
    ({"response_format": schema(zz=1)}, "unknown_parameter", "response_format.json_schema.zz"),
    ({"functions": []}, "unsupported_parameter", "functions"),
    ({"modalities": ["audio"]}, "unsupported_parameter", "modalities"),
    ({"service_tier": "flex"}, "unsupported_parameter", "service_tier"),
    ({"colour": "red"}, "unknown_parameter", "colour"),
    ({"metadata": {"a": 1}}, "invalid_type", "metadata.a"),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD_CHATS)
def test_bad_chats_are_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_chat({"model": "m", "messages": MESSAGES, **fields})
    told = refused.value
    assert (told.status, told.code, told.param) == (400, code, param)
    assert "robot" not in told.message


@pytest.mark.parametrize("document", [None, [1, 2], "x", 5])
def test_a_body_is_an_object(document: Any) -> None:
    for read in (read_chat, read_completion, read_embedding, read_response):
        with pytest.raises(OpenAIError, match="must be a JSON object"):
            read(document)


WHOLE_CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi"}, picture(detail="low")]},
        {"role": "assistant", "content": None, "tool_calls": [call()]},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ],
    "stop": ["x"],
    "stream": True,
    "stream_options": {"include_usage": True},
    "logit_bias": {"1": 1},
    "metadata": {"a": "b"},
    "tools": [function(description="d", parameters={}, strict=True)],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": schema(strict=True),
}
WHOLE_RESPONSE: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "i"},
        {"type": "function_call_output", "call_id": "c", "output": "1"},
    ],
    "stream": True,
    "stream_options": {"include_obfuscation": False},
    "include": ["message.output_text.logprobs"],
    "reasoning": {"effort": "low"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": "low"},
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
}


ODD: tuple[Any, ...] = (None, True, 5, "x", [], ["x"], [[]], {}, {"x": []})


def places(document: Any) -> list[tuple[Any, ...]]:
    inner = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [(), *((key, *rest) for key, each in inner for rest in places(each))]


def put(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = document.copy()
    changed[place[0]] = put(document[place[0]], place[1:], value)
    return changed


@pytest.mark.parametrize(
    ("document", "read"), [(WHOLE_CHAT, chat_call), (WHOLE_RESPONSE, response_call)]
)
def test_whatever_stands_anywhere_is_taken_or_refused(document: Any, read: Any) -> None:
    assert read(document, "cancel").stream
    for place in places(document):
        for value in ODD:
            with contextlib.suppress(OpenAIError):
                read(put(document, place, value), "cancel")


def test_good_chats_are_read() -> None:
    request = read_chat(
        {
            "model": "m",
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": None, "tool_calls": [call("a"), call("b")]},
                {"role": "tool", "tool_call_id": "b", "content": "2"},
                {"role": "tool", "tool_call_id": "a", "content": "1"},
            ],
            "stop": "x",
            "temperature": 0,
            "tools": [TOOL],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    )
    assert request.include_usage
    assert request.stop == "x"


def test_completions_take_one_text() -> None:
    assert read_completion({"model": "m", "prompt": ["once"]}).prompt == "once"
    for prompt, code in (
        (None, "missing_required_parameter"),
        (["a", "b"], "unsupported_parameter"),
        (5, "invalid_type"),
        ("", "string_below_min_length"),
    ):
        with pytest.raises(OpenAIError) as refused:
            read_completion({"model": "m", "prompt": prompt})
        assert (refused.value.code, refused.value.param) == (code, "prompt")


def test_completions_refuse_what_would_not_be_kept() -> None:
    for fields, param in (
        ({"logprobs": 0}, "logprobs"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ):
        with pytest.raises(OpenAIError) as refused:
            read_completion({"model": "m", "prompt": "x", **fields})
        assert refused.value.param == param
    assert read_completion({"model": "m", "prompt": "x", "top_p": 0}).top_p == 0


def test_embeddings_take_texts() -> None:
    assert read_embedding({"model": "m", "input": "a"}).texts == ["a"]
    for asked, param in (([], "input"), ([""], "input[0]"), ([1], "input"), (["a", 1], "input[1]")):
        with pytest.raises(OpenAIError) as refused:
            read_embedding({"model": "m", "input": asked})
        assert refused.value.param == param
    answer = embedding_answer([[0.5, -1.0]], model="m", tokens=1, as_base64=True)
    assert answer["data"][0]["embedding"] == "AAAAPwAAgL8="


def test_responses_are_conversations() -> None:
    document = {
        "model": "m",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "2+2?"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "4"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": True}],
        "tool_choice": {"type": "function", "name": "f"},
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}}},
        "max_output_tokens": 9,
    }
    spec = response_call(document, "cancel").spec
    assert spec.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": None, "tool_calls": [call("c")]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    parameters = spec.parameters
    assert parameters["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert parameters["response_format"]["json_schema"] == {"name": "n", "schema": {}}
    assert parameters["max_completion_tokens"] == 9


def made(name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "f", "arguments": "{}"} | fields


def answered(name: str = "c", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": name, "output": "1"} | fields


def unknown(param: str) -> tuple[str, str]:
    return "unknown_parameter", param


USER = {"role": "user", "content": "hi"}
TEXT = {"type": "input_text", "text": "hi"}
FUNCTION = {"type": "function", "name": "f"}
BAD_RESPONSES: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "missing_required_parameter", "input"),
    ({"input": []}, "empty_array", "input"),
    ({"input": [{"type": "reasoning"}]}, "unsupported_parameter", "input[0].type"),
    ({"input": [{"type": ["message"]}]}, "unsupported_parameter", "input[0].type"),
    (
        {"input": [USER | {"content": [{"type": ["input_text"]}]}]},
        "unsupported_parameter",
        "input[0].content[0].type",
    ),
    ({"background": True}, "unsupported_parameter", "background"),
    ({"conversation": "c"}, "unsupported_parameter", "conversation"),
    ({"max_tool_calls": 0}, "unsupported_parameter", "max_tool_calls"),
    ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
    ({"reasoning": {"summary": "auto"}}, "unsupported_parameter", "reasoning.summary"),
    ({"reasoning": {"effort": 5}}, "invalid_value", "reasoning.effort"),
    ({"reasoning": {"effort": "bogus"}}, "invalid_value", "reasoning.effort"),
    ({"text": {"verbosity": 3}}, "invalid_value", "text.verbosity"),
    ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include[0]"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    # Nothing is dropped silently.
    ({"stream_options": {"include_obfuscation": True}}, "invalid_value", "stream_options"),
    (
        {"stream": True, "stream_options": {"include_usage": True}},
        "unknown_parameter",
        "stream_options.include_usage",
    ),
    ({"tools": [FUNCTION | {"defer_loading": True}]}, *unknown("tools[0].defer_loading")),
    ({"input": [USER, made(zz=1), answered()]}, *unknown("input[1].zz")),
    ({"input": [USER, made(), answered(zz=1)]}, *unknown("input[2].zz")),
    (
        {"input": [{"role": "user", "content": [TEXT | {"zz": 1}]}]},
        *unknown("input[0].content[0].zz"),
    ),
    # By the names of responses, at the places of the input.
    (
        {"instructions": "x", "input": [{"role": "robot", "content": "y"}]},
        "invalid_value",
        "input[0].role",
    ),
    (
        {"input": [USER, made("c"), made("d"), answered("c"), answered("d"), {"role": "user"}]},
        "missing_required_parameter",
        "input[5].content",
    ),
    ({"input": [USER, made("c"), made("c")]}, "invalid_value", "input[2].call_id"),
    ({"input": [USER, made("c"), USER]}, "invalid_value", "input[1]"),
    ({"input": [USER, answered("c")]}, "invalid_value", "input[1].call_id"),
    ({"input": [USER, made(), answered(output=[])]}, "empty_array", "input[2].output"),
    ({"tools": [FUNCTION | {"name": "bad name"}]}, "invalid_value", "tools[0].name"),
    ({"tools": [FUNCTION | {"strict": "yes"}]}, "invalid_type", "tools[0].strict"),
    (
        {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}},
        "invalid_value",
        "tool_choice.name",
    ),
    ({"text": {"format": "json"}}, "invalid_type", "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "invalid_value", "text.format.type"),
    (
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "missing_required_parameter",
        "text.format.name",
    ),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD_RESPONSES)
def test_bad_responses_are_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        response_call({"model": "m", "input": "hi", **fields}, "cancel")
    told = refused.value
    assert (told.code, told.param) == (code, param)
    assert not re.search(r"messages\[|response_format|tool_call_id|robot", told.message)


def test_what_goes_wrong_later_is_told_by_the_names_of_responses() -> None:
    read = response_call(
        {
            "model": "m",
            "instructions": "x",
            "input": [{"role": "user", "content": [{"type": "input_image", "image_url": "u"}]}],
            "include": ["message.output_text.logprobs"],
        },
        "cancel",
        history=[{"role": "user", "content": "before"}],
    )
    for ours, theirs in (
        ("messages", "input"),
        ("messages[0].content", "instructions"),
        ("messages[1].content[0]", "previous_response_id"),
        ("messages[2].content[0]", "input[0].content[0]"),
        ("messages[2].content[0].image_url.url", "input[0].content[0].image_url"),
        ("logprobs", "include"),
        ("reasoning_effort", "reasoning.effort"),
        ("response_format", "text.format"),
        ("response_format.json_schema.schema", "text.format.schema"),
        ("tools[3].function.parameters", "tools[3].parameters"),
        ("tools", "tools"),
        ("model", "model"),
    ):
        error = OpenAIError(400, f"'{ours}' is not supported.", param=ours, code="c")
        told = read.rendering.told(error)
        assert (told.param, told.message) == (theirs, f"'{theirs}' is not supported.")
    error = OpenAIError(503, "Down.", code="c", headers={"Retry-After": "2"}, facts={"a": 1})
    assert vars(read.rendering.told(error)) == vars(error)
