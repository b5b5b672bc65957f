"""What may be asked, and what is said about everything else: by name, in OpenAI's words."""

from __future__ import annotations

import inspect
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
from api.openai.responses import ResponseRequest, chat_parameters, messages_of, read_response

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


def test_embeddings_take_texts() -> None:
    assert read_embedding({"model": "m", "input": "a"}).texts == ["a"]
    for asked, param in (([], "input"), ([""], "input[0]"), ([1], "input"), (["a", 1], "input[1]")):
        with pytest.raises(OpenAIError) as refused:
            read_embedding({"model": "m", "input": asked})
        assert refused.value.param == param
    answer = embedding_answer([[0.5, -1.0]], model="m", tokens=1, as_base64=True)
    assert answer["data"][0]["embedding"] == "AAAAPwAAgL8="


def test_responses_are_conversations() -> None:
    request = read_response(
        {
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
    )
    assert messages_of(request.input)[1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call("c")]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
    ]
    parameters = chat_parameters(request)
    assert parameters["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert parameters["response_format"]["json_schema"] == {"name": "n", "schema": {}}
    assert parameters["max_completion_tokens"] == 9


BAD_RESPONSES: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "missing_required_parameter", "input"),
    ({"input": []}, "empty_array", "input"),
    ({"input": [{"type": "reasoning"}]}, "unsupported_parameter", "input[0].type"),
    ({"background": True}, "unsupported_parameter", "background"),
    ({"conversation": "c"}, "unsupported_parameter", "conversation"),
    ({"truncation": "auto"}, "unsupported_parameter", "truncation"),
    ({"reasoning": {"summary": "auto"}}, "unsupported_parameter", "reasoning.summary"),
    ({"include": ["file_search_call.results"]}, "unsupported_parameter", "include[0]"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
]


@pytest.mark.parametrize(("fields", "code", "param"), BAD_RESPONSES)
def test_bad_responses_are_refused_by_name(fields: dict[str, Any], code: str, param: str) -> None:
    with pytest.raises(OpenAIError) as refused:
        read_response({"model": "m", "input": "hi", **fields})
    assert (refused.value.code, refused.value.param) == (code, param)
