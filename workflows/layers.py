"""The layers of one call as activities: known here by name, contract, patience and a plain line.

Every method starts its activity and returns the handle; nobody here decides anything.
"""

from __future__ import annotations

from typing import TypeVar
from uuid import UUID

from pydantic import BaseModel
from temporalio import workflow
from temporalio.workflow import ActivityHandle

from workflows import policies
from workflows.contracts import (
    AccountInput,
    Admission,
    AdmitInput,
    AssembledPrompt,
    AssembleInput,
    CacheAnswer,
    Candidate,
    Charge,
    Concluded,
    ConcludeInput,
    DecideInput,
    Decision,
    Generated,
    GenerateInput,
    LookUpInput,
    Plan,
    ReleaseAnswerInput,
    Released,
    SettleInput,
    Tenant,
    Turn,
)
from workflows.queueing import model_queue, turn_at_engine

__all__ = ["Layers"]

Result = TypeVar("Result", bound=BaseModel | None)

# Temporal refuses a summary of more than 400 bytes; a character has at most four.
SUMMARY_CHARS = 100


class Layers:
    """What the layers need to know of a call, and how long each is waited for."""

    def __init__(
        self, *, tenant: Tenant, task_id: UUID, step: int, plan: Plan, turn: Turn, max_tokens: int
    ) -> None:
        self._tenant = tenant
        self._plan = plan
        self._turn = turn
        self._max_tokens = max_tokens
        # A tool choice is bound by its grammar, whatever the answer must obey.
        self._output = plan.output if turn.purpose == "answer" else None
        self._step = step
        self.common = {
            "tenant": tenant,
            "task_id": task_id,
            "step": step,
            "call_key": f"{task_id}:{step}",
        }

    def admit(self, prompt_chars: int) -> ActivityHandle[Admission]:
        """02: may this call happen? Holds its worst case, and waits for limits of rate."""
        return self._start(
            "gateway.admit",
            AdmitInput(
                **self.common,
                route=self._plan.route,
                model=self._plan.model,
                max_tokens=self._max_tokens,
                prompt_chars=prompt_chars,
                on_budget=self._plan.limits.on_budget,
            ),
            Admission,
            policies.ADMIT,
            "may this call happen? hold its worst case",
        )

    def look_up(self, transcript_digest: str) -> ActivityHandle[CacheAnswer]:
        """06: has this been answered already?"""
        return self._start(
            "cache.look_up",
            LookUpInput(
                **self.common,
                plan=self._plan,
                turn=self._turn,
                transcript_digest=transcript_digest,
            ),
            CacheAnswer,
            policies.LOOKUP,
            "has this been answered already?",
        )

    def decide(self, prompt_chars: int) -> ActivityHandle[Decision]:
        """03: which model answers?"""
        return self._start(
            "router.decide",
            DecideInput(
                **self.common,
                route=self._plan.route,
                model=self._plan.model,
                turn=self._turn,
                prompt_chars=prompt_chars,
                max_tokens=self._max_tokens,
                output=self._output,
            ),
            Decision,
            policies.LOOKUP,
            f"which model answers on route {self._plan.route}?",
        )

    def assemble(self, chosen: Candidate, number: int) -> ActivityHandle[AssembledPrompt]:
        """05: what does the model see?"""
        # An answer draws on retrieval, unless the agent searches by itself.
        searches = any(tool.name == "search" for tool in self._plan.tools)
        draws = self._turn.purpose == "answer" and not searches
        return self._start(
            "context.assemble",
            AssembleInput(
                **self.common,
                candidate=number,
                chosen=chosen,
                turn=self._turn,
                collections=self._plan.collections,
                passages=self._plan.passages if draws else 0,
                max_tokens=self._max_tokens,
                max_prompt_tokens=self._plan.limits.max_prompt_tokens,
                safety=self._plan.safety,
            ),
            AssembledPrompt,
            # A worker killed in it is noticed the sooner, the less it had to do.
            policies.RETRIEVAL if draws and self._plan.collections else policies.LOOKUP,
            f"{chosen.model}: what does the model see?",
        )

    def generate(
        self, chosen: Candidate, prompt: AssembledPrompt, admission: Admission, *, alone: bool
    ) -> ActivityHandle[Generated]:
        """07, 08: the model call itself, in its turn; given up sooner if another model waits."""
        task = (
            f"choose among {', '.join(self._turn.tools)}"
            if self._turn.purpose == "tool_call"
            else f"answer in {prompt.max_tokens} at most"
        )
        return self._start(
            "generation.generate",
            GenerateInput(
                **self.common,
                generation_key=prompt.generation_key,
                chosen=chosen,
                turn=self._turn,
                sampling=self._plan.sampling,
                max_tokens=prompt.max_tokens,
                output=self._output,
                has_next=not alone,
                safety=self._plan.safety,
            ),
            Generated,
            self._in_turn(
                policies.GENERATE if alone else policies.GENERATE_WITH_FALLBACK,
                chosen,
                prompt,
                admission,
            ),
            f"{chosen.model}: prompt {prompt.prompt_tokens} tokens, {task}",
        )

    def release(
        self, prompt: AssembledPrompt, generated: Generated, approval_id: str
    ) -> ActivityHandle[Released]:
        """02: did a person let the answer pass that a rule holds back?"""
        return self._start(
            "generation.release",
            ReleaseAnswerInput(
                **self.common,
                generation_key=prompt.generation_key,
                approval_id=approval_id,
                generated=generated,
                output=self._output,
            ),
            Released,
            policies.LOOKUP,
            "may the answer be told?",
        )

    def account(
        self, chosen: Candidate, generation_key: str, *, patient: bool
    ) -> ActivityHandle[None]:
        """08: what did the attempts of a given-up generation make?"""
        return self._start(
            "generation.account",
            AccountInput(
                **self.common,
                generation_key=generation_key,
                triton_model=chosen.triton_model,
                patient=patient,
            ),
            type(None),
            policies.ACCOUNT,
            "count what the given-up generation made",
        )

    def settle(self, settlement: SettleInput, summary: str) -> ActivityHandle[Charge]:
        """02, 06: write the ledger, release the hold, keep the answer."""
        return self._start("gateway.settle", settlement, Charge, policies.MONEY, summary)

    def conclude(self, conclusion: ConcludeInput, summary: str) -> ActivityHandle[Concluded]:
        """02: end the task whose answer a person let pass, unless something was said to it."""
        return self._start("gateway.conclude", conclusion, Concluded, policies.MONEY, summary)

    def _in_turn(
        self,
        options: policies.Options,
        chosen: Candidate,
        prompt: AssembledPrompt,
        admission: Admission,
    ) -> policies.Options:
        """Have a model call wait where its engine's calls do; histories of before had no class."""
        if not chosen.deployment_class:
            return options
        turn = turn_at_engine(
            self._tenant,
            self._plan.priority,
            prompt_tokens=prompt.prompt_tokens,
            max_tokens=prompt.max_tokens,
            usual_output_tokens=admission.usual_output_tokens,
        )
        queue = model_queue(workflow.info().task_queue, chosen.deployment_class)
        return {**options, "task_queue": queue, "priority": turn}

    def _start(
        self,
        activity: str,
        argument: BaseModel,
        result: type[Result],
        options: policies.Options,
        summary: str,
    ) -> ActivityHandle[Result]:
        return workflow.start_activity(
            activity,
            argument,
            result_type=result,
            summary=f"step {self._step} · {summary}"[:SUMMARY_CHARS],
            **options,
        )
