"""What comes of a tool call: a person's word before it, and one row on the step after it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from pydantic import JsonValue
from temporalio import activity

from activities.dependencies import Dependencies
from activities.screening import screened_of, screened_texts
from activities.tool_drafts import Answer
from store import approvals, blobs, tools
from workflows.contracts import ReleaseInput, Screened, ToolInput, ToolOutput
from workflows.tool_calls import arguments_digest
from workflows.transcript import digest_of

__all__ = ["Allowed", "Run", "ToolResults", "cut"]

PREVIEW_CHARS = 200

Run = Callable[[dict[str, JsonValue]], Awaitable[Answer]]


@dataclass(frozen=True)
class Allowed:
    """A call that may be made.

    Attributes:
        arguments: What the model chose, or what a person made of it.
        note: Tells the model of that.
    """

    arguments: dict[str, JsonValue]
    note: str = ""


class ToolResults:
    """Runs calls that may be made, and keeps what they answered."""

    def __init__(self, deps: Dependencies) -> None:
        self._deps = deps

    async def of(self, call: ToolInput, run: Run, *, untrusted: bool = False) -> ToolOutput:
        """Make a call, unless a person has yet to decide, or refused, or it was made already.

        Args:
            call: The call.
            run: Makes it, with the arguments that a person may have changed.
            untrusted: Whether its answer may have words from outside in it.
        """
        output = await self._of(call, run)
        return output.model_copy(update={"untrusted": untrusted})

    async def _of(self, call: ToolInput, run: Run) -> ToolOutput:
        began = datetime.now(UTC)
        allowed = await self.allowed(call)
        if isinstance(allowed, ToolOutput):
            return allowed
        answer = await run(allowed.arguments)
        await self._keep_unscreened(call, allowed, answer)
        return await self.record(call, allowed, answer, began)

    async def allowed(self, call: ToolInput) -> Allowed | ToolOutput:
        """Return how a call is to be made; or what came of it, if it is not to be made now."""
        organisation = call.tenant.organisation_id
        began = datetime.now(UTC)
        # An attempt before may have got as far as its row, or the workflow was reset to before it.
        earlier = await tools.recorded_result(
            self._deps.db, organisation, call.task_id, call.call_id
        )
        if earlier is not None:
            return _output(*earlier)
        # Or the tool has answered, and nobody could say yet whether that may be read.
        made = await self._unscreened(call)
        if made is not None:
            return await self.record(call, *made, began)
        allowed = Allowed(call.tool_call.arguments)
        if not call.approval:
            return allowed
        asked = await approvals.get(self._deps.db, organisation, call.task_id, call.call_id)
        if asked is None or asked.decision is None:
            return ToolOutput(ok=False, digest=digest_of(""), chars=0, pending=True)
        if asked.arguments_digest != arguments_digest(allowed.arguments):
            refusal = Answer("the approval is of a call with other arguments", ok=False)
            return await self.record(call, allowed, refusal, began)
        if asked.decision == "refuse":
            refusal = Answer(
                f"a person refused this call: {asked.reason or 'no reason given'}", ok=False
            )
            return await self.record(call, allowed, refusal, began)
        if asked.decided_arguments is None:
            return allowed
        edited = asked.decided_arguments
        return Allowed(edited, f"(a person changed the arguments to {_json(edited)}) ")

    async def record(
        self, call: ToolInput, allowed: Allowed, answer: Answer, began: datetime
    ) -> ToolOutput:
        """Keep what a call answered, once, and tell the model and the readers.

        What the task's policy takes out of it is not kept, what it blocks is not told, and what it
        wants a person asked about is sealed until they are.
        """
        verdict = await screened_texts(
            self._deps, call, call.safety, "tool_result", [answer.text], call.call_id
        )
        screened = screened_of(call.safety, verdict)
        if verdict is not None:
            answer = replace(answer, text=verdict.texts[0])
        if screened is not None and screened.held is not None:
            return await self._sealed(call, allowed, answer, screened)
        if screened is not None and screened.blocked is not None:
            answer = Answer(
                f"the answer is withheld: rule {screened.blocked!r} blocks it", ok=False
            )
        output = await self.keep(call, allowed, answer, began)
        return output.model_copy(update={"screened": screened})

    async def _keep_unscreened(self, call: ToolInput, allowed: Allowed, answer: Answer) -> None:
        """Seal what a tool answered: what it did is not done again because a rule takes long."""
        if call.safety is None:
            return
        organisation = call.tenant.organisation_id
        policy = await self._deps.screening.policy(organisation, call.safety.version)
        if policy.at("tool_result"):
            await self._deps.held.keep(
                organisation,
                call.task_id,
                _unscreened(call),
                {
                    "text": answer.text,
                    "ok": answer.ok,
                    "arguments": allowed.arguments,
                    "note": allowed.note,
                },
            )

    async def _unscreened(self, call: ToolInput) -> tuple[Allowed, Answer] | None:
        """Return what an attempt before this one has sealed."""
        if call.safety is None or activity.info().attempt == 1:
            return None
        organisation = call.tenant.organisation_id
        found = await self._deps.held.find(organisation, call.task_id, _unscreened(call))
        if found is None:
            return None
        kept = await self._deps.held.read(organisation, call.task_id, found)
        return Allowed(kept["arguments"], kept["note"]), Answer(kept["text"], ok=kept["ok"])

    async def keep(
        self, call: ToolInput, allowed: Allowed, answer: Answer, began: datetime
    ) -> ToolOutput:
        """Keep an answer that may be told."""
        text = allowed.note + await self._shown(call, answer.text)
        await tools.record_tool_call(
            self._deps.db,
            organisation_id=call.tenant.organisation_id,
            task_id=call.task_id,
            step=call.step,
            call_id=call.call_id,
            name=call.tool_call.name,
            attempt=activity.info().attempt,
            arguments=dict(allowed.arguments),
            result_text=text,
            ok=answer.ok,
            error=None if answer.ok else text,
            started_at=began,
            ended_at=datetime.now(UTC),
            place=call.place,
        )
        return _output(text, answer.ok)

    async def _sealed(
        self, call: ToolInput, allowed: Allowed, answer: Answer, screened: Screened
    ) -> ToolOutput:
        digest = await self._deps.held.keep(
            call.tenant.organisation_id,
            call.task_id,
            call.call_id,
            {"text": answer.text, "ok": answer.ok, "arguments": allowed.arguments},
        )
        return ToolOutput(
            ok=answer.ok, digest=digest_of(""), chars=0, screened=screened, sealed=digest
        )

    async def release(self, wanted: ReleaseInput) -> ToolOutput:
        """Tell an answer that was sealed, if a person allows it."""
        call, organisation = wanted.call, wanted.call.tenant.organisation_id
        began = datetime.now(UTC)
        earlier = await tools.recorded_result(
            self._deps.db, organisation, call.task_id, call.call_id
        )
        if earlier is not None:
            return _output(*earlier)
        asked = await approvals.get(self._deps.db, organisation, call.task_id, wanted.approval_id)
        if asked is None or asked.decision is None:
            return ToolOutput(ok=False, digest=digest_of(""), chars=0, pending=True)
        kept = await self._deps.held.read(organisation, call.task_id, wanted.sealed)
        answer = Answer(kept["text"], ok=kept["ok"])
        if asked.decision == "refuse":
            why = asked.reason or "no reason given"
            answer = Answer(f"the answer is withheld: a person refused it: {why}", ok=False)
        return await self.keep(call, Allowed(kept["arguments"]), answer, began)

    async def _shown(self, call: ToolInput, text: str) -> str:
        """Keep a long answer whole where it can be read, and show its beginning."""
        limit = self._deps.settings.tool_shown_chars
        if len(text) <= limit:
            return text
        kept = await blobs.put_for_task(
            self._deps.db,
            call.tenant.organisation_id,
            call.task_id,
            text.encode("utf-8", "replace"),
            "text/plain; charset=utf-8",
        )
        return f"{text[:limit]}\n[cut here: {len(text):,} characters in all, kept as blob {kept}]"


def _unscreened(call: ToolInput) -> str:
    return f"unscreened {call.call_id}"


def _output(text: str, ok: bool) -> ToolOutput:
    return ToolOutput(
        ok=ok, digest=digest_of(text), chars=len(text), preview=cut(text, PREVIEW_CHARS)
    )


def _json(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def cut(text: str, limit: int) -> str:
    """Return a text on one line, at most `limit` characters of it."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 2] + " …"
