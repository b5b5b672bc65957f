"""Which words of a call are screened, and put back: what goes to a model as text, wherever it is.

Not the names in it: of models, users, tags, functions and their parameters, ids, addresses of
pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from inference.answers import Answer, Choice, MadeCall
from safety.json_text import with_leaves
from safety.policy import Place
from safety.redactions import Redactions
from workflows.contracts.call import CallSpec

__all__ = [
    "is_json",
    "restored_answer",
    "restored_spec",
    "texts_of",
    "with_texts",
]

Change = Callable[[Place, str], str]


def texts_of(spec: CallSpec) -> dict[Place, list[str]]:
    """Return the texts of a call, by where they come from."""
    found: dict[Place, list[str]] = {}

    def note(place: Place, text: str) -> str:
        found.setdefault(place, []).append(text)
        return text

    _changed(spec, note)
    return found


def with_texts(spec: CallSpec, texts: Mapping[Place, Sequence[str]]) -> CallSpec:
    """Return a call with other texts where `texts_of` found those it has."""
    left = {place: iter(each) for place, each in texts.items()}
    return _changed(spec, lambda place, text: next(left[place]) if place in left else text)


def restored_spec(spec: CallSpec, redactions: Redactions) -> CallSpec:
    """Return a call as its caller wrote it."""
    return _changed(spec, lambda place, text: redactions.restore(text))


def restored_answer(answer: Answer, redactions: Redactions, *, as_json: bool) -> Answer:
    """Return an answer with what the tokens in it stand for.

    Args:
        answer: The answer as it is kept.
        redactions: What was taken out of the texts of its call.
        as_json: Its text is JSON.
    """
    if not redactions:
        return answer

    def said(texts: list[str], *, json_text: bool = False) -> list[str]:
        return [redactions.restore("".join(texts), as_json=json_text)] if texts else []

    return Answer(
        choices=[
            Choice(
                texts=said(choice.texts, json_text=as_json),
                refusals=said(choice.refusals),
                reasonings=said(choice.reasonings),
                calls=[
                    MadeCall(call.id, call.name, with_leaves(call.arguments, redactions.restore))
                    for call in choice.calls
                ],
                finish_reason=choice.finish_reason,
                logprobs=choice.logprobs,
            )
            for choice in answer.choices
        ]
    )


def is_json(spec: CallSpec) -> bool:
    """Tell whether the answer's text is JSON."""
    form = spec.parameters.get("response_format")
    return isinstance(form, dict) and form.get("type") != "text"


def _changed(spec: CallSpec, change: Change) -> CallSpec:
    parameters, shown = spec.parameters, spec.shown
    predicted = parameters.get("prediction")
    if isinstance(predicted, dict) and predicted.get("content"):
        content = _content(predicted["content"], "input", change)
        parameters = parameters | {"prediction": predicted | {"content": content}}
    if isinstance(shown.get("instructions"), str):
        shown = shown | {"instructions": change("input", shown["instructions"])}
    return replace(
        spec,
        messages=[_message(message, change) for message in spec.messages],
        prompt=None if spec.prompt is None else change("input", spec.prompt),
        parameters=parameters,
        shown=shown,
    )


def _message(message: dict[str, Any], change: Change) -> dict[str, Any]:
    place: Place = "tool_result" if message.get("role") == "tool" else "input"
    made = dict(message)
    if message.get("content"):
        made["content"] = _content(message["content"], place, change)
    if isinstance(message.get("refusal"), str):
        made["refusal"] = change(place, message["refusal"])
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call, change) for call in message["tool_calls"]]
    return made


def _content(content: Any, place: Place, change: Change) -> Any:
    if isinstance(content, str):
        return change(place, content)
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        made = part
        for name in ("text", "refusal"):
            if isinstance(part, dict) and isinstance(part.get(name), str):
                made = made | {name: change(place, part[name])}
        parts.append(made)
    return parts


def _call(call: dict[str, Any], change: Change) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = with_leaves(function["arguments"], lambda text: change("input", text))
    return call | {"function": function | {"arguments": arguments}}
