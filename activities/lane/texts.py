"""Which words of a call are screened, and put back: what goes to a model as text, wherever it is.

Not what names things: models, users, tags, functions and their parameters; ids, addresses of
pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

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

#: Of a JSON Schema: what is said to a model in words, and below which names are somebody's own.
_SCHEMA_WORDS = frozenset(
    {"title", "description", "$comment", "default", "const", "enum", "examples", "example"}
)
_SCHEMA_NAMES = frozenset({"properties", "patternProperties", "$defs", "definitions"})
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
            shown["tools"] = [_function(tool, change) for tool in shown["tools"]]
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
        made["tools"] = [
            tool | {"function": _function(tool["function"], change)}
            if isinstance(tool, dict) and isinstance(tool.get("function"), dict)
            else tool
            for tool in made["tools"]
        ]
    form = made.get("response_format")
    if isinstance(form, dict) and isinstance(form.get("json_schema"), dict):
        described = _described(form["json_schema"], "schema", change)
        made["response_format"] = form | {"json_schema": described}
    return made


def _function(function: Any, change: Change) -> Any:
    return _described(function, "parameters", change) if isinstance(function, dict) else function


def _described(thing: dict[str, Any], schema: str, change: Change) -> dict[str, Any]:
    """Change how something is described, and the words in its schema."""
    made = dict(thing)
    if isinstance(made.get("description"), str):
        made["description"] = change("input", made["description"])
    if isinstance(made.get(schema), dict):
        made[schema] = _schema(made[schema], change)
    return made


def _schema(value: Any, change: Change, *, named: bool = False) -> Any:
    """Change the words in a JSON Schema; `named`: its names are somebody's, not the schema's."""
    match value:
        case dict():
            return {
                name: _words(each, change)
                if not named and name in _SCHEMA_WORDS
                else _schema(each, change, named=not named and name in _SCHEMA_NAMES)
                for name, each in value.items()
            }
        case list():
            return [_schema(each, change) for each in value]
        case _:
            return value


def _words(value: Any, change: Change) -> Any:
    match value:
        case str():
            return change("input", value)
        case dict():
            return {name: _words(each, change) for name, each in value.items()}
        case list():
            return [_words(each, change) for each in value]
        case _:
            return value


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
