"""Who may answer a call, what it can cost, what an engine is asked, and what a text becomes."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from activities.lane.asking import Prompt, chat_request, sampling_of
from activities.lane.options import Option, cache_key, most_usd, options_of
from activities.lane.runs import TextReader
from inference.answers import Answer
from inference.upstream.messages import Delta, ToolPiece
from store.catalogue import Catalogue, Deployment, Model, Price, Route
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest, NotFound

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def catalogue() -> Catalogue:
    ours = Model("ours", "1", 4096, 512, ("chat", "completion", "grammar", "json_schema"), "t", "-")
    theirs = Model("up*", "1", 8192, 1024, ("chat", "tools", "json_schema"), "", "-")
    free = Model("unpriced", "1", 8192, 1024, ("chat",), "", "-")
    vectors = Model("vectors", "1", 256, 0, ("embedding",), "t", "-")
    return Catalogue(
        models={model.name: model for model in (ours, theirs, free, vectors)},
        deployments={
            "a": Deployment("a", "ours", "scripted", ("h:1",), "ours"),
            "b": Deployment("b", "up*", "openai", ("http://u/v1",), ""),
            "c": Deployment("c", "unpriced", "openai", ("http://u/v1",), ""),
            "d": Deployment("d", "vectors", "onnx", ("h:1",), "vectors"),
        },
        prices={
            "ours": Price("ours", Decimal(1), Decimal("0.5"), Decimal(2), LONG_AGO),
            "up*": Price("up*", Decimal(1), Decimal(1), Decimal(2), LONG_AGO, Decimal(4)),
            "vectors": Price("vectors", Decimal(1), Decimal(1), Decimal(0), LONG_AGO),
        },
        routes={"both": Route("both", "", ({"model": "ours"}, {"model": "up-x"}))},
        digest="d",
    )


def spec(model: str = "both", **parameters: Any) -> CallSpec:
    messages = [{"role": "user", "content": "hi"}]
    return CallSpec("chat", model, messages=messages, parameters=parameters)


def test_a_route_is_tried_in_its_order_and_a_wildcard_by_the_name_it_stands_for() -> None:
    found = options_of(catalogue(), spec())
    assert [(each.name, each.deployment.id) for each in found] == [("ours", "a"), ("up-x", "b")]
    assert options_of(catalogue(), spec("up-anything"))[0].engine_model == "up-anything"


def test_calls_are_spread_over_a_deployments_addresses_and_each_is_asked_once() -> None:
    told = catalogue()
    told.deployments["a"] = dataclasses.replace(told.deployments["a"], urls=("h:1", "h:2", "h:3"))
    asked = [[each.url for each in options_of(told, spec(), turn)] for turn in (0, 1, 5)]
    last = "http://u/v1"
    assert asked == [
        ["h:1", "h:2", "h:3", last],
        ["h:2", "h:3", "h:1", last],
        ["h:3", "h:1", "h:2", last],
    ]


def test_who_cannot_do_what_is_asked_is_left_out() -> None:
    assert [each.name for each in options_of(catalogue(), spec(n=3))] == ["up-x"]
    text = CallSpec("completions", "both", prompt="Once")
    assert [each.name for each in options_of(catalogue(), text)] == ["ours"]


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        (spec("nobody"), "model", "model_not_found"),
        (spec("vectors"), "model", "model_not_found"),
        (spec("unpriced"), "model", "model_unpriced"),
        (spec("ours", logprobs=True), "logprobs", "unsupported_parameter"),
        (spec("ours", n=2), "n", "unsupported_parameter"),
    ],
)
def test_what_nobody_can_is_refused_by_name(asked: CallSpec, param: str, code: str) -> None:
    with pytest.raises((NotFound, InvalidRequest)) as refused:
        options_of(catalogue(), asked)
    assert refused.value.facts == {"param": param, "code": code}


def test_what_a_template_adds_is_the_operators_to_say() -> None:
    told = catalogue()
    told.deployments["b"].options.update({"message_tokens": 100, "prompt_tokens": 0})
    usual = most_usd(options_of(catalogue(), spec("up-x")), spec("up-x"), prompt_tokens=None)
    more = most_usd(options_of(told, spec("up-x")), spec("up-x"), prompt_tokens=None)
    # One message, at $1 a million.
    assert more - usual == Decimal(100 - 8 - 16) / 1_000_000


def test_the_most_a_call_costs_is_that_of_the_dearest_who_may_answer() -> None:
    (ours,) = options_of(catalogue(), spec("ours", max_tokens=10))
    assert most_usd([ours], spec("ours", max_tokens=10), prompt_tokens=7) == Decimal("0.000027000")
    both = options_of(catalogue(), spec(max_tokens=10))
    assert most_usd(both, spec(max_tokens=10), prompt_tokens=7) > Decimal("0.000040")
    several = options_of(catalogue(), spec("up-x", max_tokens=10, n=2))
    once = most_usd(several, spec("up-x", max_tokens=10), prompt_tokens=None)
    twice = most_usd(several, spec("up-x", max_tokens=10, n=2), prompt_tokens=None)
    assert twice - once == Decimal("0.000040")


@pytest.mark.parametrize(
    ("endpoint", "said", "told"),
    [
        ("chat", {}, {"max_tokens": 1024}),
        ("chat", {"max_tokens": 5}, {"max_tokens": 5}),
        ("chat", {"max_tokens": 40_000}, {"max_tokens": 1024}),
        ("chat", {"max_completion_tokens": 9, "max_tokens": None}, {"max_completion_tokens": 9}),
        ("responses", {"max_completion_tokens": 7}, {"max_tokens": 7}),
    ],
)
def test_an_upstream_makes_no_more_than_is_held_for(
    endpoint: Any, said: dict[str, Any], told: dict[str, int]
) -> None:
    asked = CallSpec(endpoint, "up-x", messages=spec().messages, parameters=said)
    (option,) = options_of(catalogue(), asked)
    assert chat_request(option, asked).parameters == told


def test_another_address_of_a_deployment_makes_a_call_no_dearer() -> None:
    told, asked = catalogue(), spec("ours", max_tokens=10)
    once = most_usd(options_of(told, asked), asked, prompt_tokens=7)
    told.deployments["a"] = dataclasses.replace(told.deployments["a"], urls=("h:1", "h:2"))
    # The prompt is counted, and its count is no other there.
    assert most_usd(options_of(told, asked), asked, prompt_tokens=7) == once


def test_a_prompt_that_may_be_longer_than_the_window_is_held_for_whole() -> None:
    asked = spec("up-x", max_tokens=1)
    asked.messages[0]["content"] = "word " * 9000
    options = options_of(catalogue(), asked)
    fits = most_usd(options, asked, prompt_tokens=None, likely=8192)
    assert fits == Decimal(8192 + 4) / 1_000_000
    assert most_usd(options, asked, prompt_tokens=None, likely=8193) > Decimal(45_000) / 1_000_000


def test_only_what_has_one_answer_is_cached_unless_asked() -> None:
    greedy = spec(temperature=0)
    assert cache_key(greedy, "auto") == cache_key(spec(temperature=0), "auto")
    assert cache_key(greedy, "auto") != cache_key(spec(temperature=0, seed=1), "auto")
    assert cache_key(greedy, "off") is None
    assert cache_key(spec(), "auto") is None
    assert cache_key(spec(), "on") is not None
    assert cache_key(spec(temperature=0, tools=[{}]), "auto") is None


def test_a_grammar_ends_where_it_ends() -> None:
    free = sampling_of(spec(stop="x", ignore_eos=True), Prompt([1], None, 9), ("</s>",))
    assert (free.stop, free.temperature, free.max_tokens) == (("x", "</s>"), 1.0, 9)
    bound = sampling_of(spec(), Prompt([1], None, 9, grammar="root"), ("</s>",))
    assert bound.stop == ()
    likeliest = sampling_of(spec(top_p=0, top_k=5), Prompt([1], None, 9), ())
    assert (likeliest.top_p, likeliest.top_k) == (1.0, 1)


def test_what_a_grammar_leaves_no_room_for_is_asked_of_who_can() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    form = {"type": "json_object"}
    free_words: list[dict[str, Any]] = [{"stop": ["END"]}, {"min_tokens": 5}, {"ignore_eos": True}]
    for fields in free_words:
        (name,) = fields
        for bound in ({"tools": tools}, {"response_format": form}):
            asked = {**fields, **bound}
            with pytest.raises(InvalidRequest, match=f"beside '{next(iter(bound))}'") as refused:
                options_of(catalogue(), spec("ours", **asked))
            assert refused.value.facts == {"param": name, "code": "unsupported_parameter"}
            assert [each.name for each in options_of(catalogue(), spec(**asked))] == ["up-x"]
        assert options_of(catalogue(), spec("ours", **fields, tools=tools, tool_choice="none"))
        assert options_of(catalogue(), spec("ours", **fields, response_format={"type": "text"}))


def read(texts: list[str], *, grammar: str | None) -> list[Delta]:
    reader = TextReader(Prompt([1], None, 9, grammar=grammar))
    found = [delta for text in texts for delta in reader.read(text)]
    return [*found, *reader.end("stop")]


def test_a_choice_is_told_when_it_is_whole_and_words_as_they_come() -> None:
    *_, call, end = read(['{"tool": "f", ', '"arguments": {"x": 1}}'], grammar="root")
    assert (call.tool_calls[0].name, call.tool_calls[0].arguments) == ("f", '{"x": 1}')
    assert end.finish_reason == "tool_calls"
    assert [delta.text for delta in read(["No ", "need"], grammar="root")] == ["No ", "need", ""]
    assert read(['{"tool": "f'], grammar="root")[0].text == '{"tool": "f'
    assert [delta.text for delta in read(["{", "}"], grammar=None)] == ["{", "}", ""]


def test_an_answer_is_kept_and_told_again() -> None:
    answer = Answer()
    for delta in (
        Delta(text="a"),
        Delta(choice=1, text="b", finish_reason="length"),
        Delta(tool_calls=(ToolPiece(0, "i", "f", '{"x"'),)),
        Delta(tool_calls=(ToolPiece(0, arguments=":1}"), ToolPiece(1, "j", "g", "{}"))),
        Delta(finish_reason="tool_calls"),
    ):
        answer.add(delta)
    again = Answer.of(answer.document())
    told = Answer()
    for delta in again.deltas():
        told.add(delta)
    assert told.document() == answer.document()
    assert [(c.id, c.name, c.arguments) for c in told.choices[0].calls] == [
        ("i", "f", '{"x":1}'),
        ("j", "g", "{}"),
    ]
    assert isinstance(options_of(catalogue(), spec())[0], Option)
