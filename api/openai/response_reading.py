"""A response that is read again: whole, or as the events that tell it."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.openai.fields import refuse_unsupported
from api.openai.response_answers import ResponseEvents, response_object
from api.openai.responses import check_include, read_response
from inference.answers import Answer
from inference.usage import TokenUsage
from store.calls import Known

__all__ = ["ReadAgain", "read_again"]


class ReadAgain(BaseModel):
    """How it is to be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    stream: bool = Field(default=False, description="As events; the words of a text in one.")
    starting_after: int | None = Field(default=None, description="Refused: events are few.")
    include_obfuscation: bool | None = Field(
        default=None, description="Accepted; events are never padded."
    )
    include: list[str] = Field(default=[], description="Only the answer's logprobs.")
    include_brackets: list[str] = Field(
        default=[], alias="include[]", description="The same as SDKs write it."
    )


def read_again(
    known: Known, shown: dict[str, Any], own_id: str, how: ReadAgain
) -> dict[str, Any] | bytes:
    """Return a response's document, or its events.

    Args:
        known: The call, as it is on file.
        shown: What its answer repeats of its request.
        own_id: Its id.
        how: How it is to be told.

    Raises:
        OpenAIError: It cannot be told so (400).
    """
    if how.starting_after is not None:
        # A stream that broke off had an event for each piece, with numbers of its own.
        raise refuse_unsupported("starting_after", "an answer on file is told from its beginning")
    check_include([*how.include, *how.include_brackets])
    request = read_response({**shown, "input": "-", "previous_response_id": None}).model_copy(
        update={"previous_response_id": shown.get("previous_response_id")}
    )
    assert known.answer is not None
    answer, used = Answer.of(known.answer), TokenUsage(**(known.usage or {}))
    created = int(known.created_at.timestamp())
    if how.stream:
        events = ResponseEvents(request, own_id=own_id, created=created, model=known.model)
        told = events.begin() + events.of(list(answer.deltas()))
        return told + events.end(answer, used, known.ended_at)
    return response_object(
        request,
        own_id=own_id,
        created=created,
        model=known.model,
        answer=answer,
        used=used,
        completed=known.ended_at,
    )
