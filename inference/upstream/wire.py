"""OpenAI's chat completions as they stand in JSON: of the answer, only what is used is read."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.upstream.messages import Delta, ToolPiece
from inference.usage import TokenUsage

__all__ = ["Event", "Usage", "deltas_of", "read_embeddings", "read_event", "usage_of"]


class _Function(msgspec.Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _ToolCall(msgspec.Struct, frozen=True):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, frozen=True):
    index: int = 0
    delta: _Message | None = None
    message: _Message | None = None
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class _PromptDetails(msgspec.Struct, frozen=True):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """An upstream's count, as it stands in its answer."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    # DeepSeek's own name.
    prompt_cache_hit_tokens: int | None = None

    @property
    def tells_output(self) -> bool:
        """Whether it says anything of what was written."""
        return self.completion_tokens is not None or self.total_tokens is not None


class Event(msgspec.Struct, frozen=True):
    """One event of a stream, or a whole answer that was not streamed."""

    id: str | None = None
    object: str | None = None
    model: str | None = None
    system_fingerprint: str | None = None
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None


class _Embeddings(msgspec.Struct, frozen=True):
    data: msgspec.Raw
    model: str | None = None
    usage: Usage | None = None


read_event = msgspec.json.Decoder(Event).decode
read_embeddings = msgspec.json.Decoder(_Embeddings).decode


def deltas_of(event: Event) -> list[Delta]:
    """Return what an event adds; what only opens a choice or carries usage adds nothing."""
    found = []
    for choice in event.choices or ():
        said = choice.delta or choice.message
        calls: tuple[ToolPiece, ...] = ()
        text = refusal = reasoning = ""
        if said is not None:
            text, refusal = said.content or "", said.refusal or ""
            reasoning = said.reasoning_content or said.reasoning or ""
            if said.tool_calls:
                calls = tuple(
                    _piece(place, call, whole=choice.delta is None)
                    for place, call in enumerate(said.tool_calls)
                )
        if text or refusal or reasoning or calls or choice.finish_reason:
            # A copy: the original keeps the whole event in memory.
            raw = bytes(choice.logprobs)
            logprobs = None if raw == b"null" else msgspec.Raw(raw)
            found.append(
                Delta(choice.index, text, refusal, reasoning, calls, choice.finish_reason, logprobs)
            )
    return found


def _piece(place: int, call: _ToolCall, *, whole: bool) -> ToolPiece:
    # In pieces, one that leaves its index out means the first call: there can be no other.
    index = call.index if call.index is not None else place if whole else 0
    function = call.function or _Function()
    return ToolPiece(index, call.id, function.name, function.arguments or "")


def usage_of(usage: Usage | None) -> TokenUsage | None:
    """Return the upstream's count, if it gave one."""
    if usage is None or usage.prompt_tokens is None:
        return None
    details, written = usage.prompt_tokens_details, usage.completion_tokens_details
    prompt, completion = max(0, usage.prompt_tokens), max(0, usage.completion_tokens or 0)
    cached = (details.cached_tokens if details else None) or usage.prompt_cache_hit_tokens or 0
    reasoning = (written.reasoning_tokens if written else None) or 0
    # OpenAI counts thoughts among what was written, others beside it: that shows in the sum, for
    # what was read and what was written are all there is.
    rest = reasoning if usage.total_tokens is None else usage.total_tokens - prompt
    completion = max(completion, rest)
    return TokenUsage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(max(0, cached), prompt),
        reasoning_tokens=min(max(0, reasoning), completion),
        source="upstream",
    )
