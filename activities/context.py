"""Layer 05: what does the model see?"""

from __future__ import annotations

from temporalio import activity

from activities.dependencies import Dependencies
from activities.failures import typed_failures
from activities.passages import Passages
from activities.transcript import Unit, conversation_units, newest_question
from activities.trimming import trim
from store import journal, tasks
from workflows.contracts import AssembledPrompt, AssembleInput, generation_key
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
        db, organisation = self._deps.db, call.tenant.organisation_id
        catalogue = await self._deps.catalogue.read()
        model = catalogue.models.get(call.chosen.model)
        if model is None:
            raise NotFound(f"model {call.chosen.model!r} is not registered any more")
        tokenizer = await self._deps.tokenizers.of(call.chosen.model)
        # The answer needs room: at least a token, at most what was asked for.
        longest = min(call.max_tokens, model.max_output_tokens)
        room = min(longest, max(1, model.context_window // 2))
        limit = min(model.context_window - room, call.max_prompt_tokens or model.context_window)
        transcript = await tasks.load_transcript(db, organisation, call.task_id, tokens=limit)
        passages: list[Unit] = []
        if call.passages and call.collections:
            passages = await self._passages.units(
                organisation, call.collections, newest_question(transcript), call.passages
            )
        trimmed = trim(
            conversation_units(
                transcript,
                call.turn,
                passages,
                await self._deps.definitions.of(organisation, call.turn),
            ),
            tokenizer,
            limit=limit,
        )
        if trimmed is None:
            raise ContextTooLong(
                f"system prompt, pinned messages and question alone exceed {limit} tokens: "
                f"{model.name} has a window of {model.context_window}, {room} of them for the "
                f"answer"
                + (f"; limits.max_prompt_tokens is {limit}" if call.max_prompt_tokens else "")
            )
        prompt_tokens = len(trimmed.ids)
        key = generation_key(call.call_key, call.candidate)
        await journal.stage_prompt(
            db,
            organisation_id=organisation,
            workflow_id=activity.info().workflow_id or "",
            task_id=call.task_id,
            step=call.step,
            call_key=call.call_key,
            candidate=call.candidate,
            channel=call.turn.purpose,
            model=call.chosen.model,
            model_version=call.chosen.version,
            tokenizer_version=call.chosen.tokenizer_version,
            deployment=call.chosen.deployment,
            prompt_ids=trimmed.ids,
            provenance=[part.model_dump(mode="json") for part in trimmed.parts],
        )
        return AssembledPrompt(
            generation_key=key,
            prompt_tokens=prompt_tokens,
            max_tokens=min(longest, model.context_window - prompt_tokens),
            dropped=trimmed.dropped + transcript.omitted,
        )
