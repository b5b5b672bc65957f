"""What an upstream is asked: sizes, names of functions, parameters, choices read back."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.toolbox import parse_choice, parse_choices
from activities.upstream_prompt import ByBytes, ToolNames, choice_text, parameters_of, tools_of
from inference.templates import ChatMessage
from inference.upstream.estimate import TextCount, estimate_prompt, most_tokens
from inference.upstream.messages import ToolPiece
from inference.upstream.options import UpstreamOptions, options_of
from store.tool_registry import ToolRecord
from workflows.contracts import Candidate, GenerateInput, Sampling, Tenant, ToolCall, Turn

CHOICE = Turn(purpose="tool_call", tools=("calculator", "search"))
SCHEMA = (
    '{"type": "object", "properties": {"n": {}}, "required": ["n"], "additionalProperties": %s}'
)


ANSWER = Turn(purpose="answer")


def generate(turn: Turn = ANSWER, **sampling: Any) -> GenerateInput:
    return GenerateInput(
        tenant=Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4()),
        task_id=uuid4(),
        step=1,
        call_key="c",
        generation_key="c#0",
        chosen=Candidate(
            model="m",
            version="1",
            deployment="d",
            triton_model="m",
            urls=("http://u/v1",),
            tokenizer_version="",
            reason="",
            constrained=True,
            engine="openai",
        ),
        turn=turn,
        sampling=Sampling(**sampling),
        max_tokens=50,
    )


@given(st.lists(st.text(max_size=200), min_size=1, max_size=5))
def test_a_prompt_is_never_longer_than_its_bytes(texts: list[str]) -> None:
    messages = [ChatMessage("user", text.encode("utf-8", "replace").decode()) for text in texts]
    ruler = ByBytes(1.0)
    sent = ruler.prompt(messages)
    size = sum(len(message["content"].encode()) for message in sent)
    assert ruler.length(sent) > size
    assert most_tokens(sent) > size
    assert estimate_prompt(sent) <= most_tokens(sent)


@given(st.lists(st.text(max_size=50), max_size=5))
def test_the_likely_tokens_of_a_text_do_not_depend_on_its_pieces(texts: list[str]) -> None:
    whole, pieces = TextCount(), TextCount()
    whole.add("".join(texts))
    for text in texts:
        pieces.add(text)
    assert whole.tokens == pieces.tokens


def test_a_picture_counts_by_the_dearest_there_is() -> None:
    url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert most_tokens([{"role": "user", "content": [url, url]}]) > 80_000


def test_only_what_differs_from_the_usual_is_said() -> None:
    assert parameters_of(generate(), UpstreamOptions(), [], None) == {
        "max_tokens": 50,
        "temperature": 0.0,
    }
    said = parameters_of(
        generate(top_k=5, seed=3, stop=("x",), presence_penalty=0.5, ignore_eos=True),
        options_of({"max_tokens_parameter": "max_completion_tokens", "leave_out": ["temperature"]}),
        [],
        None,
    )
    assert said == {
        "max_completion_tokens": 50,
        "top_k": 5,
        "seed": 3,
        "stop": ["x"],
        "presence_penalty": 0.5,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(("closed", "strict"), [("false", True), ("true", False)])
def test_a_schema_is_strict_where_openai_takes_it_to_be(closed: str, strict: bool) -> None:
    said = parameters_of(generate(), UpstreamOptions(), [], SCHEMA % closed)
    assert said["response_format"]["json_schema"].get("strict", False) is strict


def test_functions_stand_for_tools_whatever_these_are_called() -> None:
    tools = ("store.get/item", "store.get.item", "answer", "s." + "x" * 100)
    names = ToolNames(tools)
    functions = [names.function(tool) for tool in tools]
    assert len(set(functions)) == len(tools)
    assert [names.tool(function) for function in functions] == list(tools)
    for function in functions:
        assert len(function) <= 64
        assert function.replace("_", "").replace("-", "").isalnum()
        assert function != "answer"


def test_a_choice_is_read_back_as_the_loop_wants_it() -> None:
    tool = ToolRecord.__new__(ToolRecord)
    turn = Turn(purpose="tool_call", tools=("calculator", "store.buy"), parallel=1)
    names = ToolNames(turn.tools)
    registered = {"store.buy": tool}

    def chosen(*pieces: ToolPiece) -> ToolCall | None:
        return parse_choice(choice_text(turn, pieces), turn.tools, registered)

    assert chosen(
        ToolPiece(0, "a", "calculator"),
        ToolPiece(0, arguments='{"expres'),
        ToolPiece(0, arguments='sion": "1+1"}'),
    ) == ToolCall(name="calculator", arguments={"expression": "1+1"})
    assert chosen(ToolPiece(0, "a", names.function("store.buy"), '{"n": 1}')) == ToolCall(
        name="store.buy", arguments={"n": 1}
    )
    # Nothing chosen, no tool needed, cut off, made up: all lead to the answer.
    assert chosen() is None
    assert chosen(ToolPiece(0, "a", "answer", "{}")) is None
    assert chosen(ToolPiece(0, "a", "calculator", '{"expr')) is None
    assert chosen(ToolPiece(0, "a", "other", "{}")) is None


def test_several_calls_are_a_list() -> None:
    turn = Turn(purpose="tool_call", tools=("calculator", "search"), parallel=3)
    pieces = [
        ToolPiece(1, "b", "search", '{"query": "b"}'),
        ToolPiece(0, "a", "calculator", '{"expression": "1"}'),
        ToolPiece(2, "c", "answer", "{}"),
    ]
    calls = parse_choices(choice_text(turn, pieces), turn.tools, parallel=3)
    assert [call.name for call in calls] == ["calculator", "search"]
    assert parse_choices(choice_text(turn, []), turn.tools, parallel=3) == ()


def test_the_functions_of_a_turn() -> None:
    functions = tools_of(CHOICE, {})
    assert [each["function"]["name"] for each in functions] == ["calculator", "search", "answer"]
    assert functions[0]["function"]["parameters"]["required"] == ["expression"]
    owed = Turn(purpose="tool_call", tools=("search",), may_answer=False)
    assert [each["function"]["name"] for each in tools_of(owed, {})] == ["search"]
    said = parameters_of(generate(CHOICE, temperature=1.0), UpstreamOptions(), functions, None)
    assert (said["temperature"], said["tool_choice"]) == (0.0, "required")
    assert said["parallel_tool_calls"] is False
    json.dumps(said)
