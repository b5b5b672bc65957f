"""Which words of a call are screened, and put back: what goes to a model as text, wherever it is.

Not what names things: models, users, tags, functions and their parameters; ids, addresses of
pictures. Of functions and forms all else is, known or not; of a schema also what is no word of JSON
Schema's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from activities.lane.schema_words import with_schema_words, with_words
from inference.answers import Answer, Choice, MadeCall
from safety.json_text import with_leaves
from safety.policy import Place
from safety.redactions import Redactions
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest

__all__ = [
    "is_json",
    "restored_answer",
    "restored_spec",
    "texts_of",
    "with_texts",
]

Change = Callable[[Place, str], str]

# What names a function or a form, or says what kind of thing it is.
_NAMES = frozenset({"type", "name", "strict"})
# Of a part of a content: its words.
_WORDED = ("text", "refusal")


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
                calls_first=choice.calls_first,
            )
            for choice in answer.choices
        ]
    )


def is_json(spec: CallSpec) -> bool:
    """Tell whether the answer's text is JSON."""
    form = spec.parameters.get("response_format")
    return isinstance(form, dict) and form.get("type") != "text"


def _changed(spec: CallSpec, change: Change) -> CallSpec:
    try:
        parameters, shown = _parameters(spec.parameters, change), dict(spec.shown)
        # What an answer repeats of its request.
        if isinstance(shown.get("instructions"), str):
            shown["instructions"] = change("input", shown["instructions"])
        if isinstance(shown.get("tools"), list):
            shown["tools"] = [_described(tool, "parameters", change) for tool in shown["tools"]]
        form = shown.get("text")
        if isinstance(form, dict) and isinstance(form.get("format"), dict):
            shown["text"] = form | {"format": _described(form["format"], "schema", change)}
    except RecursionError:
        raise InvalidRequest(
            "A schema is nested too deeply to be screened.", param="tools", code="invalid_value"
        ) from None
    return replace(
        spec,
        messages=[_message(message, change) for message in spec.messages],
        prompt=None if spec.prompt is None else change("input", spec.prompt),
        parameters=parameters,
        shown=shown,
    )


def _parameters(given: dict[str, Any], change: Change) -> dict[str, Any]:
    made = dict(given)
    predicted = made.get("prediction")
    if isinstance(predicted, dict) and predicted.get("content"):
        content = _content(predicted["content"], "input", change)
        made["prediction"] = predicted | {"content": content}
    if isinstance(made.get("tools"), list):
        made["tools"] = [_within(tool, "function", "parameters", change) for tool in made["tools"]]
    if isinstance(made.get("response_format"), dict):
        made["response_format"] = _within(made["response_format"], "json_schema", "schema", change)
    return made


def _within(thing: Any, inner: str, schema: str, change: Change) -> Any:
    """Change what is described within something, and whatever else is said there."""
    if not isinstance(thing, dict):
        return thing
    return {
        name: _described(each, schema, change) if name == inner else _unnamed(name, each, change)
        for name, each in thing.items()
    }


def _described(thing: Any, schema: str, change: Change) -> Any:
    """Change how something is described, and the words in its schema."""
    if not isinstance(thing, dict):
        return thing
    return {
        name: with_schema_words(each, partial(change, "input"))
        if name == schema
        else _unnamed(name, each, change)
        for name, each in thing.items()
    }


def _unnamed(name: str, value: Any, change: Change) -> Any:
    return value if name in _NAMES else with_words(value, partial(change, "input"))


def _message(message: dict[str, Any], change: Change) -> dict[str, Any]:
    place: Place = "tool_result" if message.get("role") == "tool" else "input"
    made = dict(message)
    if isinstance(message.get("name"), str):
        made["name"] = change(place, message["name"])
    if message.get("content"):
        made["content"] = _content(message["content"], place, change)
    if isinstance(message.get("refusal"), str):
        made["refusal"] = change(place, message["refusal"])
    if message.get("tool_calls"):
        made["tool_calls"] = [_call(call, change) for call in message["tool_calls"]]
    return made


def _content(content: Any, place: Place, change: Change) -> Any:
    """Change a content; parts that are read as one text are changed as one.

    They stay apart where nothing changes, and become one part where something does.
    """
    if isinstance(content, str):
        return change(place, content)
    if not isinstance(content, list):
        return content
    parts: list[Any] = []
    for worded, run in groupby(content, _is_worded):
        apart = list(run)
        if worded:
            said = "".join(part[name] for part in apart for name in _WORDED if _says(part, name))
            made = change(place, said)
            if made != said:
                first = {name: each for name, each in apart[0].items() if name not in _WORDED}
                kind = first.get("type")
                apart = [first | {kind if kind in _WORDED else "text": made}]
        parts.extend(apart)
    return parts


def _is_worded(part: Any) -> bool:
    return isinstance(part, dict) and any(_says(part, name) for name in _WORDED)


def _says(part: dict[str, Any], name: str) -> bool:
    return isinstance(part.get(name), str)


def _call(call: dict[str, Any], change: Change) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("arguments"), str):
        return call
    arguments = with_leaves(function["arguments"], lambda text: change("input", text))
    return call | {"function": function | {"arguments": arguments}}
