"""What an engine is asked: messages for an upstream, token ids and a grammar for a model here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from activities.dependencies import Dependencies
from activities.lane.options import Option
from activities.output import expressible
from activities.tool_schema import SchemaRefused, grammar_schema
from inference.json_grammar import SchemaError, schema_grammar
from inference.prompt import Sampling
from inference.templates import ChatMessage, encode_chat
from inference.upstream.estimate import estimate_prompt
from inference.upstream.messages import ChatRequest
from inference.upstream.options import options_of
from observability.spans import trace_carrier
from workflows.contracts.call import LONGEST, CallSpec
from workflows.errors import ContextTooLong, InvalidRequest

__all__ = ["Prompt", "chat_request", "prompt_of", "sampling_of"]

_ANY_OBJECT = json.dumps({"type": "object"})
# An answer that does not begin like a choice is words, to its end.
_WORDS = r"""
words ::= [^{] [^\x00]*
"""


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one option is asked.

    Attributes:
        ids: Token ids; empty for an upstream.
        likely: About how many tokens a text is; None where there are ids.
        max_tokens: Longest answer.
        grammar: What binds the answer, if functions may be called.
        schema: The JSON Schema that the answer must obey.
        may_say: With functions: the answer may be words as well.
    """

    ids: list[int]
    likely: int | None
    max_tokens: int
    grammar: str | None = None
    schema: str | None = None
    may_say: bool = True


async def prompt_of(deps: Dependencies, option: Option, spec: CallSpec) -> Prompt:
    """Return what an option is asked.

    Raises:
        ContextTooLong: The conversation does not fit its window: nothing is left out here.
        InvalidRequest: A schema that no grammar can promise.
    """
    if option.is_upstream:
        likely = estimate_prompt(spec.messages, spec.parameters)
        return Prompt([], likely, option.longest(spec))
    tokenizer = await deps.tokenizers.of(option.model.name)
    tools, grammar, may_say = spec.parameters.get("tools") or (), None, True
    choice = spec.parameters.get("tool_choice")
    if tools and choice != "none":
        tools, may_say = _wanted(tools, choice)
        grammar = _grammar(_encoded(tools), may_say)
    else:
        tools = ()
    if spec.prompt is not None:
        ids = tokenizer.encode(spec.prompt)
        if tokenizer.bos_id is not None:
            ids.insert(0, tokenizer.bos_id)
    else:
        ids = encode_chat(tokenizer, _spoken(spec.messages, _told(tools, may_say)))
    if any(int(token) >= tokenizer.size for token in spec.parameters.get("logit_bias") or ()):
        raise InvalidRequest(
            f"'logit_bias' names a token that the model has not: ids are below {tokenizer.size}.",
            param="logit_bias",
            code="invalid_value",
        )
    window = option.model.context_window
    longest = option.longest(spec)
    if len(ids) + (spec.longest or 1) > window:
        raise ContextTooLong(
            f"The model's window has {window} tokens; the prompt has {len(ids)}, and "
            f"{spec.longest or 1} are asked for the answer.",
            param="messages" if spec.prompt is None else "prompt",
        )
    return Prompt(
        ids,
        None,
        min(longest, window - len(ids)),
        grammar=grammar,
        schema=_schema(spec),
        may_say=may_say,
    )


def _wanted(tools: Sequence[Any], choice: Any) -> tuple[Sequence[Any], bool]:
    """Return the functions that may be called, and whether words will do."""
    if isinstance(choice, dict):
        name = choice["function"]["name"]
        return [tool for tool in tools if tool["function"]["name"] == name], False
    return tools, choice != "required"


def _encoded(tools: Sequence[Any]) -> str:
    return json.dumps([tool["function"] for tool in tools], sort_keys=True)


@lru_cache(maxsize=256)
def _grammar(functions: str, may_say: bool) -> str:
    """Return the grammar of a choice among functions, as JSON text; or of words besides."""
    read = json.loads(functions)
    document: dict[str, Any] = {
        "anyOf": [
            {
                "type": "object",
                "properties": {
                    "tool": {"const": function["name"]},
                    "arguments": {"$ref": f"#/$defs/t{number}"},
                },
                "required": ["tool", "arguments"],
            }
            for number, function in enumerate(read)
        ],
        "$defs": {},
    }
    for number, function in enumerate(read):
        parameters = function.get("parameters") or {"type": "object", "properties": {}}
        try:
            usable = grammar_schema(parameters, f"#/$defs/t{number}")
            schema_grammar(json.dumps({**document, "$defs": {"t0": usable}, "anyOf": [usable]}))
        except (SchemaRefused, SchemaError, TypeError, RecursionError, KeyError):
            raise InvalidRequest(
                "The schema of a function's parameters is not supported by the model's engine.",
                param=f"tools[{number}].function.parameters",
                code="unsupported_parameter",
            ) from None
        document["$defs"][f"t{number}"] = usable
    chosen = schema_grammar(json.dumps(document))
    if not may_say:
        return chosen
    return "root ::= chosen | words\nchosen" + chosen.removeprefix("root") + _WORDS


def _told(tools: Sequence[Any], may_say: bool) -> str:
    """Return what the model is told of the functions."""
    if not tools:
        return ""
    lines = ["You can call these functions:"]
    for tool in tools:
        function = tool["function"]
        schema = json.dumps(function.get("parameters") or {}, separators=(",", ":"))
        about = function.get("description") or "no description"
        lines.append(f'- "{function["name"]}": {about}; arguments: {schema}')
    form = '{"tool": "<name>", "arguments": {...}}'
    lines.append(
        f"To call one, reply with JSON: {form}. Else answer in words."
        if may_say
        else f"Reply with JSON: {form}."
    )
    return "\n".join(lines)


def _spoken(messages: Sequence[Mapping[str, Any]], told: str) -> list[ChatMessage]:
    """Return the conversation as templates know it: four roles, and texts."""
    names: dict[str, str] = {}
    spoken: list[ChatMessage] = []
    for message in messages:
        role, text = str(message["role"]), _text(message.get("content"))
        match role:
            case "developer":
                spoken.append(ChatMessage("system", text))
            case "assistant":
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    names[call["id"]] = function["name"]
                    written = f'{{"tool": "{function["name"]}", "arguments": '
                    text += ("\n" if text else "") + written + f"{function['arguments']}}}"
                spoken.append(ChatMessage("assistant", text or str(message.get("refusal") or "")))
            case "tool":
                spoken.append(
                    ChatMessage("tool", text, name=names.get(str(message["tool_call_id"])))
                )
            case _:
                spoken.append(ChatMessage(role, text))
    if told:
        # A small model follows what it read last.
        last = spoken[-1]
        spoken[-1] = ChatMessage(last.role, f"{last.content}\n\n{told}", name=last.name)
    return spoken


def _text(content: Any) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text") or part.get("refusal") or "") for part in content)
    return content or ""


def _schema(spec: CallSpec) -> str | None:
    asked = spec.parameters.get("response_format")
    if not asked or asked["type"] == "text":
        return None
    if asked["type"] == "json_object":
        return _ANY_OBJECT
    schema = json.dumps(asked["json_schema"]["schema"])
    if not expressible(schema):
        raise InvalidRequest(
            "This schema is not supported: the model's engine cannot be held to it.",
            param="response_format.json_schema.schema",
            code="unsupported_parameter",
        )
    return schema


def sampling_of(spec: CallSpec, prompt: Prompt, stops: Sequence[str]) -> Sampling:
    """Return how a model under Triton picks tokens; what was not said is OpenAI's default."""
    asked = spec.parameters
    stop = asked.get("stop") or ()
    bound = prompt.schema is not None or prompt.grammar is not None
    biased = asked.get("logit_bias") or {}

    def number(name: str, default: float) -> float:
        value = asked.get(name)
        return default if value is None else float(value)

    top_p, seed = number("top_p", 1.0), asked.get("seed")
    return Sampling(
        max_tokens=prompt.max_tokens,
        min_tokens=int(asked.get("min_tokens") or 0),
        temperature=number("temperature", 1.0),
        # Of a nucleus of nothing the likeliest token is left; engines say that in another way.
        top_p=top_p or 1.0,
        top_k=1 if top_p == 0 else int(asked.get("top_k") or 0),
        seed=None if seed is None else int(seed) % 2**63,
        repetition_penalty=number("repetition_penalty", 1.0),
        presence_penalty=number("presence_penalty", 0.0),
        frequency_penalty=number("frequency_penalty", 0.0),
        # What a grammar binds ends where the grammar does; who asks for a stop is refused.
        stop=() if bound else (*([stop] if isinstance(stop, str) else stop), *stops),
        ignore_eos=bool(asked.get("ignore_eos")),
        biased_ids=tuple(map(int, biased)),
        biases=tuple(map(float, biased.values())),
    )


def chat_request(option: Option, spec: CallSpec) -> ChatRequest:
    """Return what an upstream is asked: what the client wrote, under the upstream's own name.

    How long the answer may be is always said: no more is held for the call.
    """
    options = options_of(option.deployment.options)
    asked = dict(spec.parameters)
    # A client of a chat says it by the name that the upstream knows; other names are ours.
    chat = spec.endpoint == "chat"
    names = [name for name in LONGEST if chat and asked.get(name) is not None]
    for name in LONGEST:
        asked.pop(name, None)
    for name in names or [options.max_tokens_parameter]:
        asked[name] = option.longest(spec)
    parameters = {name: value for name, value in asked.items() if name not in options.leave_out}
    return ChatRequest(
        model=option.engine_model,
        messages=spec.messages,
        parameters=parameters,
        headers=trace_carrier(),
        first_byte_s=options.first_byte_s,
        idle_s=options.idle_s,
    )
