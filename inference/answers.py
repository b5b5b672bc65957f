"""An answer as a whole: built from the pieces of a stream, kept, and told again in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inference.upstream.messages import Delta, ToolPiece

__all__ = ["Answer", "Choice", "MadeCall", "add_piece"]


@dataclass(slots=True)
class MadeCall:
    """A tool call of a model, with its arguments as the model wrote them: JSON text, mostly."""

    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class Choice:
    """One of the answers to a request.

    Attributes:
        calls_first: How many calls had begun before the first word came.
    """

    texts: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    reasonings: list[str] = field(default_factory=list)
    calls: list[MadeCall] = field(default_factory=list)
    finish_reason: str | None = None
    logprobs: dict[str, Any] | None = None
    calls_first: int = 0

    @property
    def text(self) -> str:
        """What was said."""
        return "".join(self.texts)

    @property
    def refusal(self) -> str:
        """What was said in place of an answer."""
        return "".join(self.refusals)

    @property
    def reasoning(self) -> str:
        """What was thought aloud."""
        return "".join(self.reasonings)


@dataclass(slots=True)
class Answer:
    """All that a call gave, choice by choice."""

    choices: list[Choice] = field(default_factory=lambda: [Choice()])

    def add(self, delta: Delta) -> None:
        """Take a piece."""
        while len(self.choices) <= delta.choice:
            self.choices.append(Choice())
        choice = self.choices[delta.choice]
        if (delta.text or delta.refusal) and not (choice.texts or choice.refusals):
            choice.calls_first = len(choice.calls)
        if delta.text:
            choice.texts.append(delta.text)
        if delta.refusal:
            choice.refusals.append(delta.refusal)
        if delta.reasoning:
            choice.reasonings.append(delta.reasoning)
        for piece in delta.tool_calls:
            add_piece(choice.calls, piece)
        if delta.finish_reason:
            choice.finish_reason = delta.finish_reason
        if delta.logprobs is not None:
            _add_logprobs(choice, delta.logprobs)

    @property
    def text(self) -> str:
        """Text of the first choice."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """How the first choice ended."""
        return self.choices[0].finish_reason

    def document(self) -> dict[str, Any]:
        """Return the answer as it is kept."""
        return {"choices": [_kept(choice) for choice in self.choices]}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Answer:
        """Return a kept answer."""
        return cls(choices=[_choice(kept) for kept in document["choices"]])

    def deltas(self) -> Iterator[Delta]:
        """Tell the answer in pieces, as if it were being made."""
        for number, choice in enumerate(self.choices):
            logprobs = (
                None
                if choice.logprobs is None
                else msgspec.Raw(msgspec.json.encode(choice.logprobs))
            )
            pieces = tuple(
                ToolPiece(place, call.id, call.name, call.arguments)
                for place, call in enumerate(choice.calls)
            )
            if before := pieces[: choice.calls_first]:
                yield Delta(choice=number, tool_calls=before)
            if choice.text or choice.refusal or choice.reasoning or logprobs is not None:
                yield Delta(
                    choice=number,
                    text=choice.text,
                    refusal=choice.refusal,
                    reasoning=choice.reasoning,
                    logprobs=logprobs,
                )
            if after := pieces[choice.calls_first :]:
                yield Delta(choice=number, tool_calls=after)
            yield Delta(choice=number, finish_reason=choice.finish_reason or "stop")


def add_piece(calls: list[MadeCall], piece: ToolPiece) -> None:
    """Add a piece of a tool call to the calls it belongs to."""
    # An index far beyond what there is would be a mistake of the engine's, not thousands of calls.
    index = min(piece.index, len(calls))
    if index == len(calls):
        calls.append(MadeCall())
    call = calls[index]
    call.id = call.id or piece.id or ""
    call.name += piece.name or ""
    call.arguments += piece.arguments


def _add_logprobs(choice: Choice, raw: msgspec.Raw) -> None:
    told = msgspec.json.decode(raw)
    if not isinstance(told, dict):
        return
    if choice.logprobs is None:
        choice.logprobs = {"content": None, "refusal": None}
    for name, values in told.items():
        if isinstance(values, list):
            choice.logprobs[name] = [*(choice.logprobs.get(name) or ()), *values]


def _kept(choice: Choice) -> dict[str, Any]:
    kept: dict[str, Any] = {"finish_reason": choice.finish_reason}
    for name in ("text", "refusal", "reasoning", "logprobs", "calls_first"):
        if value := getattr(choice, name):
            kept[name] = value
    if choice.calls:
        kept["tool_calls"] = [
            {"id": call.id, "name": call.name, "arguments": call.arguments} for call in choice.calls
        ]
    return kept


def _choice(kept: Mapping[str, Any]) -> Choice:
    def said(name: str) -> list[str]:
        return [kept[name]] if kept.get(name) else []

    return Choice(
        texts=said("text"),
        refusals=said("refusal"),
        reasonings=said("reasoning"),
        calls=[MadeCall(**call) for call in kept.get("tool_calls", ())],
        finish_reason=kept.get("finish_reason"),
        logprobs=kept.get("logprobs"),
        calls_first=kept.get("calls_first", 0),
    )
