"""Which texts of a request a safety policy is about, and what is told of what it decides. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from workflows.contracts import FiledRequest, Safety, TaskRequest
from workflows.errors import ApprovalRequired, ContentBlocked, SafetyUnavailable

__all__ = ["filed_as", "needs_a_person", "not_allowed", "not_judged", "texts_of", "with_texts"]


def not_allowed(rule: str | None) -> ContentBlocked:
    """Return what is told of content that a rule blocks."""
    return ContentBlocked(
        f"The rule {rule!r} of the safety policy does not allow what was sent.", rule=rule
    )


def needs_a_person(rule: str | None) -> ApprovalRequired:
    """Return what is told where a rule asks for a person, and nobody can wait for one."""
    return ApprovalRequired(
        f"The rule {rule!r} of the safety policy asks for a person's approval first; submit "
        "it as a task, which waits for one.",
        rule=rule,
    )


def not_judged(rule: str) -> SafetyUnavailable:
    """Return what is told of a rule that cannot be applied."""
    return SafetyUnavailable(
        f"The rule {rule!r} of the safety policy cannot be applied at present; try again.",
        rule=rule,
        retry_after_s=5,
    )


def texts_of(request: TaskRequest) -> list[str]:
    """Return what a model will read of a request: its system prompt and all that is said in it."""
    said = [message.content for message in request.conversation()]
    return said if request.system is None else [request.system, *said]


def with_texts(request: TaskRequest, texts: Sequence[str]) -> TaskRequest:
    """Return a request with other texts, in the order of `texts_of`."""
    left = list(texts)
    update: dict[str, object] = {}
    if request.system is not None:
        update["system"] = left.pop(0)
    if request.input is not None:
        update["input"] = left[0]
    else:
        update["messages"] = tuple(
            message.model_copy(update={"content": text})
            for message, text in zip(request.messages, left, strict=True)
        )
    return request.model_copy(update=update)


def filed_as(
    request: TaskRequest,
    *,
    version: int,
    scope: UUID,
    team: UUID | None = None,
    asks: str | None = None,
    judges: bool = False,
) -> FiledRequest:
    """Return a request as it is filed that was screened by a policy."""
    safety = Safety(version=version, scope=scope, team=team, asks=asks, judges=judges)
    said = {name: getattr(request, name) for name in type(request).model_fields}
    return FiledRequest.model_construct(**{**said, "safety": safety})
