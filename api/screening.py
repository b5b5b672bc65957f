"""What callers send, screened by their team's safety policy before it is filed anywhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

from api.parts import Parts
from api.problems import ProblemError
from observability.metrics import record_refusal
from safety.errors import DetectorFailed
from safety.policy import Place
from safety.redactions import Redactions
from store.identity import Principal
from store.screened_tasks import TaskScreening
from store.screening import About, NewTask, ScreenedTask
from workflows import errors
from workflows.contracts import Safety, TaskRequest
from workflows.screening import (
    filed_as,
    needs_a_person,
    not_allowed,
    not_judged,
    texts_of,
    with_texts,
)

__all__ = [
    "Screened",
    "ScreenedMap",
    "screen_map",
    "screen_message",
    "screen_task",
]


@dataclass(frozen=True)
class Screened:
    """A request as it is to be filed.

    Attributes:
        request: With the policy it was screened by, if one holds.
        tool_result: Of a fork: what takes the place of a tool's answer.
        message: Of a fork: what takes the place of what was said to the other task.
        filed: What is filed with it.
    """

    request: TaskRequest
    tool_result: str | None = None
    message: str | None = None
    filed: TaskScreening | None = None


async def screen_task(
    parts: Parts,
    caller: Principal,
    task_id: UUID,
    request: TaskRequest,
    *,
    inherited: Redactions | None = None,
    tool_result: str | None = None,
    message: str | None = None,
) -> Screened:
    """Screen a task that is to be filed.

    Raises:
        ProblemError: A rule blocks it (400), or cannot be applied (503).
    """
    asked = [*texts_of(request), *([] if message is None else [message])]
    texts: dict[Place, Sequence[str]] = {"input": asked}
    if tool_result is not None:
        texts["tool_result"] = [tool_result]
    made = await _screen_new(parts, caller, task_id, texts, inherited=inherited)
    if made is None:
        return Screened(request, tool_result, message)
    said = list(made.texts["input"])
    if message is not None:
        message = said.pop()
    return Screened(
        request=filed_as(
            with_texts(request, said),
            version=made.version,
            scope=task_id,
            asks=made.rule if made.outcome == "require_approval" else None,
            judges=made.judges,
        ),
        tool_result=made.texts["tool_result"][0] if tool_result is not None else None,
        message=message,
        filed=made.filed,
    )


@dataclass(frozen=True)
class ScreenedMap:
    """A map as it is to be filed.

    Attributes:
        task: What all its inputs are asked with.
        items: What is special to each.
        filed: What is filed with it.
    """

    task: dict[str, Any]
    items: Sequence[dict[str, Any]]
    filed: TaskScreening | None = None


async def screen_map(
    parts: Parts,
    caller: Principal,
    task_id: UUID,
    each: TaskRequest,
    items: Sequence[dict[str, Any]],
) -> ScreenedMap:
    """Screen a map that is to be filed: its inputs, and what all of them are asked with.

    Raises:
        ProblemError: A rule blocks one of them (400), or cannot be applied (503).
    """
    task = each.model_dump(mode="json", exclude={"input", "messages", "webhook"})
    system = [] if each.system is None else [each.system]
    said = [text for item in items for text in _said_in(item)]
    made = await _screen_new(parts, caller, task_id, {"input": [*system, *said]})
    if made is None:
        return ScreenedMap(task, items)
    texts = iter(made.texts["input"])
    if system:
        task["system"] = next(texts)
    task["safety"] = Safety(
        version=made.version,
        scope=task_id,
        asks=made.rule if made.outcome == "require_approval" else None,
        judges=made.judges,
    ).model_dump(mode="json")
    return ScreenedMap(task, [_said_as(item, texts) for item in items], filed=made.filed)


def _said_in(item: Mapping[str, Any]) -> list[str]:
    if "input" in item:
        return [item["input"]]
    return [message["content"] for message in item["messages"]]


def _said_as(item: Mapping[str, Any], texts: Iterator[str]) -> dict[str, Any]:
    if "input" in item:
        return {**item, "input": next(texts)}
    messages = [{**message, "content": next(texts)} for message in item["messages"]]
    return {**item, "messages": messages}


async def _screen_new(
    parts: Parts,
    caller: Principal,
    task_id: UUID,
    texts: Mapping[Place, Sequence[str]],
    *,
    inherited: Redactions | None = None,
) -> ScreenedTask | None:
    """Screen the texts of what is to be filed; nothing where no policy holds.

    Raises:
        ProblemError: A rule blocks it (400), or cannot be applied (503).
        PolicyChanged: Another policy holds than the one whose rule blocks it.
    """
    new = NewTask(
        caller.organisation_id, caller.team_id, task_id, texts, caller.key_prefix, inherited
    )
    try:
        made = await parts.screening.of_new(new)
    except DetectorFailed as failure:
        raise unavailable(failure) from failure
    if made is None or made.outcome != "block":
        return made
    await parts.screening.refused(
        caller.organisation_id, caller.team_id, made.version, made.filed.decisions
    )
    raise blocked(made.rule)


async def screen_message(
    parts: Parts,
    caller: Principal,
    safety: Safety,
    about_id: UUID,
    content: str,
    *,
    may_wait: bool = False,
) -> str:
    """Screen what is said to a task or in a session, and return it as it may be kept.

    Args:
        parts: What the API stands on.
        caller: Who says it.
        safety: By which policy, and whose redactions.
        about_id: The task, or the session.
        content: What is said.
        may_wait: What comes of it waits for a person, if a rule asks for one.

    Raises:
        ProblemError: A rule blocks it (400), asks for a person (403), or cannot be applied (503).
    """
    about = About(
        organisation_id=caller.organisation_id,
        task_id=about_id,
        scope=safety.scope,
        policy=safety.version,
        step=0,
        what=f"message {uuid4().hex}",
        actor=caller.key_prefix,
    )
    try:
        verdict = await parts.screening.checked(about, "input", [content])
    except DetectorFailed as failure:
        raise unavailable(failure) from failure
    if verdict is None:
        return content
    rule = verdict.decisive.rule if verdict.decisive else None
    if verdict.outcome == "block":
        raise blocked(rule)
    if verdict.outcome == "require_approval" and not may_wait:
        record_refusal("approval_required", "policy")
        raise _problem(needs_a_person(rule))
    return verdict.texts[0]


def blocked(rule: str | None) -> ProblemError:
    """Count content that a rule blocks, and return what is told of it."""
    record_refusal("content_blocked", "policy")
    return _problem(not_allowed(rule))


def unavailable(failure: DetectorFailed) -> ProblemError:
    """Count a rule that cannot be applied, and return what is told of it."""
    record_refusal("safety_unavailable", "policy")
    told = not_judged(failure.rule)
    return _problem(told, headers={"Retry-After": str(told.facts["retry_after_s"])})


def _problem(
    told: errors.OverlineError, *, headers: Mapping[str, str] | None = None
) -> ProblemError:
    facts: dict[str, Any] = dict(told.facts)
    return ProblemError(type(told), told.message, headers=headers, **facts)
