"""What one generation asks for, and how it becomes tensors and tensors become it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from inference.contract import GENERATE, Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen and when a generation ends.

    Attributes:
        max_tokens: Most tokens of the whole generation, those of earlier attempts included.
        min_tokens: Least tokens before the end-of-text token is allowed.
        temperature: 0 is greedy.
        top_p: Nucleus, in (0, 1].
        top_k: Most likely tokens considered; 0 means all.
        seed: None lets the engine choose one.
        repetition_penalty: 1 is none.
        presence_penalty: 0 is none.
        frequency_penalty: 0 is none.
        stop_token_ids: Tokens that end the generation; they are counted, but are no text.
        stop: Strings that end it; neither they nor what follows is text.
        ignore_eos: Generate to max_tokens whatever the model says.
        biased_ids: Tokens that are made more or less likely, where the engine can.
        biases: By how much, added to their logits; one for each.
    """

    max_tokens: int = 256
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    biased_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()


@dataclass(frozen=True)
class Prompt:
    """One generation as the engine sees it.

    Attributes:
        request_id: Unique per attempt; the meter counts by it.
        input_ids: The prompt.
        generated_ids: What earlier attempts of the same generation produced.
        json_schema: JSON Schema text the output must obey.
        grammar: GBNF text the output must obey.
        lora_name: Adapter, by the name the deployment gave it.
    """

    request_id: str
    input_ids: list[int]
    generated_ids: list[int] = field(default_factory=list)
    sampling: Sampling = field(default_factory=Sampling)
    json_schema: str | None = None
    grammar: str | None = None
    lora_name: str | None = None


def pack_prompt(prompt: Prompt) -> list[tuple[Tensor, list[Any]]]:
    """The tensors of a prompt; what equals its default is left out."""
    sent: list[tuple[Tensor, list[Any]]] = [(GENERATE.input("input_ids"), prompt.input_ids)]
    if prompt.generated_ids:
        sent.append((GENERATE.input("generated_ids"), prompt.generated_ids))
    for each in fields(Sampling):
        value = getattr(prompt.sampling, each.name)
        # max_tokens is always said: a generation must never rest on somebody's default.
        if value == each.default and each.name != "max_tokens":
            continue
        values = list(value) if isinstance(value, tuple) else [value]
        sent.append((GENERATE.input(each.name), values))
    for name in ("json_schema", "grammar", "lora_name"):
        text = getattr(prompt, name)
        if text is not None:
            sent.append((GENERATE.input(name), [text]))
    return sent


def unpack_prompt(request_id: str, read: Callable[[str], list[Any] | None]) -> Prompt:
    """The reverse, inside the model.

    Args:
        request_id: The id the request came with.
        read: Gives the values of an input by name, or None where it was not sent.
    """
    chosen: dict[str, Any] = {}
    for each in fields(Sampling):
        values = read(each.name)
        if values is None:
            continue
        if each.name == "stop":
            chosen["stop"] = tuple(_text(value) for value in values)
        elif each.name in ("stop_token_ids", "biased_ids"):
            chosen[each.name] = tuple(int(value) for value in values)
        elif each.name == "biases":
            chosen["biases"] = tuple(float(value) for value in values)
        else:
            chosen[each.name] = values[0]
    texts = {
        name: _text(values[0]) if (values := read(name)) else None
        for name in ("json_schema", "grammar", "lora_name")
    }
    return Prompt(
        request_id=request_id,
        input_ids=read("input_ids") or [],
        generated_ids=read("generated_ids") or [],
        sampling=Sampling(**chosen),
        json_schema=texts["json_schema"],
        grammar=texts["grammar"],
        lora_name=texts["lora_name"],
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()
