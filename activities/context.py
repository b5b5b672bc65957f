"""Layer 05: what does the model see?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, TypedDict
from uuid import UUID

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.passages import Passages, content_of, with_content
from activities.screening import screened_of, screened_texts
from activities.toolbox import Registered
from activities.transcript import Unit, conversation_units, newest_question
from activities.trimming import trim, trim_by
from activities.upstream_prompt import ByBytes, tools_of
from inference.upstream.estimate import estimate_prompt
from inference.upstream.options import options_of
from store import journal, tasks
from store.journal import StagedRequest
from workflows.contracts import AssembledPrompt, AssembleInput, Screened, generation_key
from workflows.errors import ContextTooLong, NotFound

__all__ = ["Context"]


class Context:
    """Assembles a prompt, trimmed to the chosen model's window by its own tokenizer."""

    def __init__(self, deps: Dependencies, passages: Passages) -> None:
        self._deps = deps
        self._passages = passages

    @activity.defn(name="context.assemble")
    @typed_failures
    async def assemble(self, call: AssembleInput) -> AssembledPrompt:
        """Build, trim and stage the prompt; the text goes to the journal, a reference returns.

        Raises:
            ApplicationError: `ContextTooLong` when what must be kept does not fit the window.
        """
        organisation = call.tenant.organisation_id
        model = (await self._deps.catalogue.read()).find(call.chosen.model)
        if model is None:
            raise NotFound(f"model {call.chosen.model!r} is not registered any more")
        # The answer needs room: at least a token, at most what was asked for.
        longest = min(call.max_tokens, model.max_output_tokens)
        room = min(longest, max(1, model.context_window // 2))
        limit = min(model.context_window - room, call.max_prompt_tokens or model.context_window)
        transcript = await tasks.load_transcript(
            self._deps.db, organisation, call.task_id, tokens=limit
        )
        passages: list[Unit] = []
        screened: Screened | None = None
        if call.passages and call.collections:
            found = await self._passages.units(
                organisation, call.collections, newest_question(transcript), call.passages
            )
            passages, screened = await self._screened(call, found)
        registered = await self._deps.definitions.of(organisation, call.turn)
        elsewhere = call.chosen.engine == "openai"
        units = conversation_units(
            transcript, call.turn, passages, registered, described=not elsewhere
        )
        staged = (
            await self._stage_request(call, units, registered, limit)
            if elsewhere
            else await self._stage_prompt(call, units, limit)
        )
        if staged is None:
            raise ContextTooLong(
                f"system prompt, pinned messages and question alone exceed {limit} tokens: "
                f"{model.name} has a window of {model.context_window}, {room} of them for the "
                f"answer"
                + (f"; limits.max_prompt_tokens is {limit}" if call.max_prompt_tokens else "")
            )
        tokens, dropped = staged
        return AssembledPrompt(
            generation_key=generation_key(call.call_key, call.candidate),
            prompt_tokens=tokens,
            max_tokens=min(longest, model.context_window - tokens),
            dropped=dropped + transcript.omitted,
            screened=screened,
        )

    async def _screened(
        self, call: AssembleInput, passages: list[Unit]
    ) -> tuple[list[Unit], Screened | None]:
        """Return passages as the task's policy lets the model see them; what it blocks is left out.

        One that it wants a person asked about is left out, too: passages are found anew for every
        call, so there is nothing that a word of theirs could be about.
        """
        verdict = await screened_texts(
            self._deps,
            call,
            call.safety,
            "passage",
            [content_of(unit) for unit in passages],
            what=f"#{call.candidate}",
        )
        screened = screened_of(call.safety, verdict)
        if verdict is None or screened is None or verdict.mode == "dry_run":
            return passages, screened
        out = {
            found.part
            for found in verdict.findings
            if found.action in ("block", "require_approval")
        }
        kept = [
            with_content(unit, text)
            for part, (unit, text) in enumerate(zip(passages, verdict.texts, strict=True))
            if part not in out
        ]
        return kept, screened

    async def _stage_prompt(
        self, call: AssembleInput, units: Sequence[Unit], limit: int
    ) -> tuple[int, int] | None:
        """Stage token ids; return how many, and how many units were dropped."""
        tokenizer = await self._deps.tokenizers.of(call.chosen.model)
        trimmed = trim(units, tokenizer, limit=limit)
        if trimmed is None:
            return None
        await journal.stage_prompt(
            self._deps.db,
            **_about(call),
            tokenizer_version=call.chosen.tokenizer_version,
            prompt_ids=trimmed.prompt,
            provenance=[part.model_dump(mode="json") for part in trimmed.parts],
        )
        return trimmed.tokens, trimmed.dropped

    async def _stage_request(
        self, call: AssembleInput, units: Sequence[Unit], registered: Registered, limit: int
    ) -> tuple[int, int] | None:
        """Stage messages and tools; return how many tokens they may have, and what was dropped."""
        deployment = (await self._deps.catalogue.read()).deployments[call.chosen.deployment]
        choosing = call.turn.purpose == "tool_call"
        tools = tools_of(call.turn, registered) if choosing else []
        options = options_of(deployment.options)
        ruler = ByBytes(
            options.bytes_per_token,
            tools=len(json.dumps(tools, ensure_ascii=False).encode()) if tools else 0,
            around_message=options.message_tokens,
            around_prompt=options.prompt_tokens,
        )
        trimmed = trim_by(units, ruler, limit=limit)
        if trimmed is None:
            return None
        likely = estimate_prompt(trimmed.prompt, {"tools": tools})
        await journal.stage_request(
            self._deps.db,
            **_about(call),
            # ASCII: what Postgres keeps must be whole characters, and comes out as it went in.
            request=StagedRequest(
                request=json.dumps({"messages": trimmed.prompt, "tools": tools}),
                prompt_tokens=likely,
            ),
            provenance=[part.model_dump(mode="json") for part in trimmed.parts],
        )
        return trimmed.tokens, trimmed.dropped


class _About(TypedDict):
    organisation_id: UUID
    generation_key: str
    workflow_id: str
    task_id: UUID
    step: int
    call_key: str
    candidate: int
    channel: Literal["answer", "tool_call"]
    model: str
    model_version: str
    deployment: str


def _about(call: AssembleInput) -> _About:
    return _About(
        organisation_id=call.tenant.organisation_id,
        generation_key=generation_key(call.call_key, call.candidate),
        workflow_id=activity.info().workflow_id or "",
        task_id=call.task_id,
        step=call.step,
        call_key=call.call_key,
        candidate=call.candidate,
        channel=call.turn.purpose,
        model=call.chosen.model,
        model_version=call.chosen.version,
        deployment=call.chosen.deployment,
    )
