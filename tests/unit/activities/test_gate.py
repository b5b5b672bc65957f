"""What of an answer passes: kept as screened, shown with the originals, whatever it comes in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from uuid import uuid4

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from activities.lane.gate import FILTERED, Gate, gate_of
from activities.lane.moderation import flagged, question
from activities.lane.policing import _asked_together
from activities.lane.screening import ScreenedCall, refuse_unscreenable
from activities.lane.texts import (
    restored_answer,
    restored_spec,
    texts_of,
    with_texts,
)
from inference.answers import Answer
from inference.upstream.messages import Delta, ToolPiece
from safety.errors import DetectorFailed
from safety.policy import Policy, Rule
from safety.redactions import Redactions
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest

ADA = "ada.canary@example.com"
TOKEN = "<EMAIL_ADDRESS_1>"
MAIL = {"id": "mail", "kind": "pii", "types": ["EMAIL_ADDRESS"], "action": "redact"}
BLUE = {"id": "blue", "kind": "deny_list", "words": ["Bluebird"], "on": ["output"]}


def policy(*rules: dict[str, Any], **fields: Any) -> Policy:
    return Policy.of({"rules": list(rules), **fields})


def redactions(*originals: str) -> Redactions:
    made = Redactions()
    for original in originals:
        made.token("EMAIL_ADDRESS", original)
    return made


def through(gate: Gate, *pieces: Delta) -> list[Delta]:
    shown: list[Delta] = []
    for number, piece in enumerate(pieces):
        shown += gate.take([piece], ended=number == len(pieces) - 1)
        if gate.blocked:
            break
    return shown


def told(deltas: Sequence[Delta]) -> Answer:
    answer = Answer()
    for delta in deltas:
        answer.add(delta)
    return answer


@given(cuts=st.sets(st.integers(1, 120), max_size=12), hold_back=st.sampled_from([32, 64, 200]))
def test_any_pieces_give_the_same_and_nothing_taken_out_is_shown(
    cuts: set[int], hold_back: int
) -> None:
    said = (
        f"Dear {TOKEN}, write to eve.canary@example.org, not to {TOKEN}; <EMAIL_ADDRESS_9> is not."
    )
    edges = [0, *sorted(cut for cut in cuts if cut < len(said)), len(said)]
    pieces = [Delta(text=said[a:b]) for a, b in pairwise(edges)]
    gate = gate_of(policy(MAIL, hold_back=hold_back), redactions(ADA), as_json=False)
    assert gate is not None
    shown = through(gate, *pieces, Delta(finish_reason="stop"))
    kept = f"Dear {TOKEN}, write to [EMAIL_ADDRESS], not to {TOKEN}; <EMAIL_ADDRESS_9> is not."
    assert gate.kept.text == gate.journal() == kept
    assert told(shown).text == gate.shown.text == kept.replace(TOKEN, ADA)
    assert told(shown).finish_reason == gate.kept.finish_reason == "stop"
    assert all("<EMAIL" not in d.text or "_9>" in d.text for d in shown)
    filed = gate.decision(uuid4(), 3, actor="a")
    assert filed is not None
    assert (filed.outcome, filed.place, len(filed.findings)) == ("redact", "output", 1)
    assert "canary" not in json.dumps(filed.document())


def test_a_block_ends_the_answer_with_what_had_passed() -> None:
    gate = gate_of(policy({**BLUE, "action": "block"}, hold_back=0), Redactions(), as_json=False)
    assert gate is not None
    shown = through(
        gate,
        Delta(text="All is well. " * 8 + "The Blue"),
        Delta(text="bird flies. " * 8),
        Delta(text="never read", finish_reason="stop"),
    )
    assert gate.blocked
    assert told(shown).finish_reason == gate.kept.finish_reason == FILTERED
    assert told(shown).text == gate.kept.text == gate.journal()
    assert gate.kept.text.startswith("All is well.")
    assert "Blue" not in gate.kept.text
    filed = gate.decision(uuid4(), 1, actor="a")
    assert filed is not None
    assert filed.outcome == "block"


def test_a_dry_run_changes_nothing_and_tells() -> None:
    gate = gate_of(policy({**BLUE, "action": "block"}, mode="dry_run"), Redactions(), as_json=False)
    assert gate is not None
    shown = through(gate, Delta(text="Bluebird"), Delta(finish_reason="stop"))
    assert shown[0].text == "Bluebird"
    assert not gate.blocked
    assert gate.said == "dry_run"
    filed = gate.decision(uuid4(), 1, actor="a")
    assert filed is not None
    assert (filed.mode, filed.outcome) == ("dry_run", "allow")


def test_what_no_rule_is_about_passes_as_it_comes() -> None:
    on_input = {**MAIL, "on": ["input"]}
    assert gate_of(policy(on_input), Redactions(), as_json=False) is None
    assert ScreenedCall().gate(CallSpec(endpoint="chat", model="m")) is None
    assert gate_of(policy(on_input), redactions(ADA), as_json=False) is not None


def test_choices_channels_and_arguments_are_screened_apart() -> None:
    gate = gate_of(policy(MAIL), redactions(ADA, 'a"b\n@example.com'), as_json=False)
    assert gate is not None
    arguments = json.dumps({"to": f"\n{TOKEN}", "cc": ["eve@example.org"], "<EMAIL_ADDRESS_2>": 1})
    pieces = [
        Delta(tool_calls=(ToolPiece(0, "c1", "send", arguments[:9]),)),
        Delta(choice=1, text=TOKEN[:5], reasoning="I think of eve@example.org"),
        Delta(tool_calls=(ToolPiece(0, None, None, arguments[9:]),)),
        Delta(choice=1, text=TOKEN[5:], finish_reason="length"),
        Delta(finish_reason="tool_calls"),
    ]
    shown = told(through(gate, *pieces))
    (call,) = shown.choices[0].calls
    assert (call.id, call.name) == ("c1", "send")
    assert json.loads(call.arguments) == {
        "to": f"\n{ADA}",
        "cc": ["[EMAIL_ADDRESS]"],
        'a"b\n@example.com': 1,
    }
    assert json.loads(gate.kept.choices[0].calls[0].arguments)["to"] == f"\n{TOKEN}"
    assert shown.choices[1].text == ADA
    assert shown.choices[1].reasoning == "I think of [EMAIL_ADDRESS]"
    assert [c.finish_reason for c in shown.choices] == ["tool_calls", "length"]
    assert {f.part for f in gate.findings} == {0, 1}
    # Read again later, it is the same.
    again = restored_answer(
        Answer.of(gate.kept.document()), redactions(ADA, 'a"b\n@example.com'), as_json=False
    )
    assert again.document() == shown.document()


@pytest.mark.parametrize("as_json", [False, True])
def test_what_is_thought_comes_before_what_is_said(as_json: bool) -> None:
    gate = gate_of(policy({**BLUE, "action": "redact"}), redactions(ADA), as_json=as_json)
    assert gate is not None
    thoughts, said = f"I think of {TOKEN} and a Bluebird <", '{"a": "It is forty-two."}'
    pieces = [Delta(reasoning=thoughts[:9]), Delta(reasoning=thoughts[9:], text=said[:5])]
    pieces += [*(Delta(text=each) for each in said[5:]), Delta(finish_reason="stop")]
    shown = through(gate, *pieces)
    kinds = ["thought" if each.reasoning else "said" for each in shown[:-1]]
    assert kinds == sorted(kinds, reverse=True)
    assert told(shown).choices[0].reasoning == f"I think of {ADA} and a [DENIED] <"
    assert told(shown).text == gate.kept.text == said


def test_a_word_is_found_though_something_else_is_said_in_its_middle() -> None:
    """What was said before the turn was said; the rest of the word is not."""
    gate = gate_of(policy({**BLUE, "action": "redact"}), Redactions(), as_json=False)
    assert gate is not None
    pieces = [Delta(text="a Blue"), Delta(reasoning="hm"), Delta(text="bird ends")]
    shown = told(through(gate, *pieces, Delta(finish_reason="stop")))
    assert shown.text == gate.kept.text == "a Blue[DENIED] ends"
    assert shown.choices[0].reasoning == "hm"


def test_what_is_put_back_into_json_stays_json() -> None:
    made = redactions('"quoted"@example.com')
    gate = gate_of(policy({**MAIL, "on": ["input"]}), made, as_json=True)
    assert gate is not None
    shown = told(through(gate, Delta(text='{"to": "<EMAIL_AD'), Delta(text='DRESS_1>"}')))
    assert json.loads(shown.text) == {"to": '"quoted"@example.com'}


def test_an_answer_that_is_json_is_screened_by_what_its_strings_say() -> None:
    made = redactions(ADA)
    said = '{"to": "eve\\u0040example.org", "cc": "<EMAIL_ADDRESS_1>", "n": 4111111111111111}'
    card = {**MAIL, "types": ["EMAIL_ADDRESS", "CREDIT_CARD"]}
    pieces = [*(Delta(text=said[at : at + 5]) for at in range(0, len(said), 5))]
    gate = gate_of(policy(card, hold_back=0), made, as_json=True)
    assert gate is not None
    shown = told(through(gate, *pieces, Delta(finish_reason="stop")))
    kept = {"to": "[EMAIL_ADDRESS]", "cc": TOKEN, "n": "[CREDIT_CARD]"}
    assert json.loads(gate.kept.text) == json.loads(gate.journal()) == kept
    assert json.loads(shown.text) == {**kept, "cc": ADA}
    assert shown.finish_reason == "stop"
    # Cut off in the middle of an escape, or at the end of what was allowed.
    gate = gate_of(policy(card), Redactions(), as_json=True)
    assert gate is not None
    through(gate, Delta(text=said[:36] + "\\u00"), Delta(finish_reason="length"))
    assert "eve" not in gate.kept.text
    blocks = policy({**MAIL, "action": "block"})
    gate = gate_of(blocks, Redactions(), as_json=True)
    assert gate is not None
    through(gate, *pieces, Delta(finish_reason="stop"))
    assert (gate.blocked, gate.kept.text, gate.kept.finish_reason) == (True, "", FILTERED)
    dry = policy({**MAIL, "action": "block"}, mode="dry_run")
    gate = gate_of(dry, Redactions(), as_json=True)
    assert gate is not None
    assert told(through(gate, *pieces, Delta(finish_reason="stop"))).text == said
    assert gate.said == "dry_run"


async def test_a_model_judges_the_whole_before_any_of_it_passes() -> None:
    judge = {"id": "judge", "kind": "moderation", "model": "m", "on": ["output"]}
    asked: list[list[str]] = []

    async def objects(rule: Rule, texts: Sequence[str]) -> list[bool]:
        asked.append(list(texts))
        return ["bad" in text for text in texts]

    async def fails(rule: Rule, texts: Sequence[str]) -> list[bool]:
        raise DetectorFailed(rule.id, "away")

    def made(action: str, **fields: Any) -> Gate:
        gate = gate_of(policy({**judge, "action": action}, **fields), Redactions(), as_json=False)
        assert gate is not None
        assert gate.asks
        return gate

    for action, text, kept in (
        ("block", "a bad thing", ""),
        ("block", "a good thing", "a good thing"),
        ("flag", "a bad thing", "a bad thing"),
    ):
        gate = made(action)
        assert through(gate, Delta(text=text), Delta(finish_reason="stop")) == []
        # Who leaves now leaves nothing behind that was not judged.
        assert gate.kept.text == gate.journal() == ""
        shown = told(await gate.judged(objects))
        assert shown.text == gate.kept.text == gate.journal() == kept
        assert shown.finish_reason == ("stop" if kept else FILTERED)
    assert asked == [["a bad thing"], ["a good thing"], ["a bad thing"]]

    gate = made("block")
    through(gate, Delta(text="x"), Delta(finish_reason="stop"))
    await gate.judged(fails)
    assert (gate.blocked, gate.failed, gate.kept.text) == (True, "judge", "")
    for ask in (fails, None):
        gate = made("block", on_failure="allow")
        through(gate, Delta(text="x"), Delta(finish_reason="stop"))
        assert told(await gate.judged(ask)).text == "x"
    gate = made("block", mode="dry_run")
    assert told(through(gate, Delta(text="bad"), Delta(finish_reason="stop"))).text == "bad"
    assert await gate.judged(objects) == ()
    assert gate.said == "dry_run"


def test_every_text_of_a_call_is_found_and_put_back_in_its_place() -> None:
    spec = CallSpec(
        endpoint="responses",
        model="m",
        messages=[
            {"role": "system", "content": "one"},
            {"role": "user", "content": [{"type": "text", "text": "two"}, {"type": "image_url"}]},
            {
                "role": "assistant",
                "content": None,
                "refusal": "three",
                "tool_calls": [
                    {"id": "c", "function": {"name": "f", "arguments": '{"a": ["four", 5]}'}}
                ],
            },
            {"role": "tool", "tool_call_id": "c", "content": "result"},
        ],
        parameters={"prediction": {"type": "content", "content": "six"}, "stop": "six"},
        shown={"instructions": "one", "metadata": {"a": "one"}},
        user="one",
    )
    texts = texts_of(spec)
    assert sorted(texts["input"]) == ["5", "a", "four", "one", "one", "six", "three", "two"]
    assert texts["tool_result"] == ["result"]
    assert with_texts(spec, texts) == spec
    other = with_texts(spec, {place: [f"<{t}>" for t in each] for place, each in texts.items()})
    assert other.messages[1]["content"][0]["text"] == "<two>"
    assert json.loads(other.messages[2]["tool_calls"][0]["function"]["arguments"]) == {
        "<a>": ["<four>", "<5>"]
    }
    assert other.parameters == {
        "prediction": {"type": "content", "content": "<six>"},
        "stop": "six",
    }
    assert other.shown == {"instructions": "<one>", "metadata": {"a": "one"}}
    assert other.user == "one"
    only = CallSpec(endpoint="completions", model="m", prompt=ADA)
    made = Redactions()
    redacted = with_texts(only, {"input": [made.token("EMAIL_ADDRESS", ADA)]})
    assert redacted.prompt == TOKEN
    assert restored_spec(redacted, made) == only


def test_parts_that_are_read_as_one_text_are_screened_as_one() -> None:
    image = {"type": "image_url", "image_url": {"url": "u"}}
    parts = [
        {"type": "text", "text": "the Blue", "mark": 1},
        {"type": "refusal", "refusal": "bird"},
        image,
        {"type": "text", "text": "flies"},
    ]
    spec = CallSpec("chat", "m", messages=[{"role": "user", "name": ADA, "content": parts}])
    texts = texts_of(spec)["input"]
    assert texts == [ADA, "the Bluebird", "flies"]
    assert with_texts(spec, {"input": texts}) == spec
    (message,) = with_texts(spec, {"input": [TOKEN, "the [DENIED]", "flies"]}).messages
    assert message == {
        "role": "user",
        "name": TOKEN,
        "content": [{"type": "text", "mark": 1, "text": "the [DENIED]"}, image, parts[3]],
    }


def test_what_is_said_of_functions_and_forms_is_screened_wherever_it_stands() -> None:
    schema = {
        "title": "t",
        "properties": {
            "description": {"type": "string", "description": "d", "enum": ["e", 1]},
            "x": {"anyOf": [{"const": "c"}, {"$ref": "#/$defs/default"}]},
        },
        "required": ["x"],
        "$defs": {"default": {"default": {"k": ["v"]}}},
    }
    function = {"name": "f", "description": "what it does", "parameters": schema}
    form = {"name": "n", "description": "a form", "schema": {"description": "of it"}}
    words = {"t", "d", "e", "1", "c", "v", "what it does", "a form", "of it"}
    spec = CallSpec(
        "responses",
        "m",
        parameters={
            "tools": [{"type": "function", "function": function}],
            "response_format": {"type": "json_schema", "json_schema": form},
        },
        shown={
            "tools": [{"type": "function", **function}],
            "text": {"format": {"type": "json_schema", **form}},
        },
    )
    texts = texts_of(spec)["input"]
    assert sorted(texts) == sorted([*words, *words])
    assert with_texts(spec, {"input": texts}) == spec
    other = with_texts(spec, {"input": [f"<{text}>" for text in texts]})
    for each in (other.parameters, other.shown):
        found = json.dumps(each)
        assert all(f'"<{word}>"' in found for word in words)
        assert all(f'"{word}"' not in found for word in words)
        assert '"required": ["x"]' in found
    deep: Any = {}
    for _ in range(3_000):
        deep = {"items": deep}
    tools = [{"type": "function", "function": {"name": "f", "parameters": deep}}]
    with pytest.raises(InvalidRequest):
        texts_of(CallSpec("chat", "m", parameters={"tools": tools}))


def test_nothing_in_a_schema_is_passed_on_unread_but_names_and_its_own_words() -> None:
    structure = {
        "type": ["object", "null"],
        "properties": {"who": {"type": "string", "format": "email", "maxLength": 100}},
        "required": ["who"],
        "then": {"required": ["who"], "$ref": "#/$defs/any"},
        "additionalProperties": False,
    }
    hiding = {
        "x-note": "a",
        "$defs": {"any": "b"},
        "properties": {
            "card": {"default": 4111111111111111},
            "type": {"type": "c", "format": "d", "pattern": "e", "minimum": 5105105105105100},
        },
        "required": ["f"],
        "anyOf": ["g", {"default": {"type": "string"}}],
        "$ref": "h",
    }
    function = {"name": "f", "said": {"in": ["i"]}, "strict": True, "parameters": hiding}
    spec = CallSpec(
        "chat",
        "m",
        parameters={
            "tools": [
                {"type": "function", "function": {"name": "g", "parameters": structure}},
                {"type": "function", "hint": "j", "function": function},
            ]
        },
    )
    texts = texts_of(spec)["input"]
    assert sorted(texts) == ["4111111111111111", "5105105105105100", *"abcdefghij", "string"]
    assert with_texts(spec, {"input": texts}) == spec
    found = json.dumps(with_texts(spec, {"input": ["<X>"] * len(texts)}).parameters)
    assert found.count('"<X>"') == len(texts)


def test_short_texts_of_a_request_are_judged_together() -> None:
    texts = ["a", "", "1", "b" * 300, "c", "d" * 150]
    assert _asked_together(texts, short=200) == [[3], [0, 4, 5]]
    assert _asked_together(texts, short=0) == [[0], [3], [4], [5]]
    many = ["e" * 150] * 20
    assert [len(group) for group in _asked_together(many, short=200)] == [13, 7]


def test_tokens_of_an_answer_that_is_screened_are_not_told() -> None:
    spec = CallSpec(endpoint="chat", model="m", parameters={"logprobs": True})
    refuse_unscreenable(spec, policy({**MAIL, "on": ["input"]}))
    refuse_unscreenable(spec, policy(MAIL, mode="dry_run"))
    with pytest.raises(InvalidRequest):
        refuse_unscreenable(spec, policy(MAIL))


def test_a_judge_is_asked_in_a_form_and_must_keep_to_it() -> None:
    rule = Rule.model_validate({"id": "j", "kind": "moderation", "model": "m", "action": "block"})
    about = CallSpec(endpoint="chat", model="x", user="ada", tags={"project": "p"}, policy=4)
    asked = question(rule, "text", about)
    assert (asked.model, asked.user, asked.policy, asked.stored) == ("m", "ada", 4, False)
    assert asked.tags == {"project": "p", "purpose": "moderation"}
    assert flagged('{"flagged": true}')
    assert not flagged(' {"flagged": false}')
    for bad in ("yes", "{}", '{"flagged": 1}', "[]"):
        with pytest.raises(ValueError):  # noqa: PT011
            flagged(bad)
    assert msgspec.json.encode(asked.document())
