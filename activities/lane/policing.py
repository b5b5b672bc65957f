"""What the safety policy of a caller makes of their calls, and what is filed of it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar
from uuid import UUID

from uuid_utils.compat import uuid7

from activities.dependencies import Dependencies
from activities.judging import Ask
from activities.lane.kept import KeptCall
from activities.lane.live import NOT_SCREENED, LiveCall
from activities.lane.moderation import flagged, question
from activities.lane.refusing import not_let_in, unsettled
from activities.lane.screening import (
    ScreenedCall,
    StoppedByPolicy,
    refuse_unscreenable,
    screened,
)
from inference.errors import EngineError
from observability.metrics import record_refusal
from observability.spans import current_trace_id
from safety.errors import DetectorFailed
from safety.policy import Place, Policy, Rule
from safety.redactions import Redactions
from store.calls import Known
from store.errors import DatabaseUnavailable, PolicyChanged, StoreError
from store.identity import Origin
from store.policy_view import Held
from store.redactions import Sealed
from store.screened_calls import ScreenedOut, file_screened_out
from workflows.codec import PayloadRefused
from workflows.contracts.call import CallSpec
from workflows.errors import (
    ApprovalRequired,
    BudgetExceeded,
    ContentBlocked,
    InvalidRequest,
    KeyRefused,
    OverlineError,
    RateLimited,
    SafetyUnavailable,
    Unauthenticated,
)

__all__ = ["Opening", "Policing", "Who"]

log = logging.getLogger("overline.lane")

T = TypeVar("T")

# How often a call is screened again because its policy has changed meanwhile.
_TRIES = 8
# Texts of a request up to so many characters are judged together, up to so many: a tool's
# description, a name, an argument; one that is judged to be bad refuses the whole of it anyway.
_SHORT = 200
_TOGETHER = 2000
# What a call is refused with as such when it is the judging of its texts that is refused.
_REFUSED = (BudgetExceeded, RateLimited, KeyRefused, Unauthenticated, DatabaseUnavailable)
_CODES: Mapping[type[OverlineError], str] = {
    ContentBlocked: "content_blocked",
    ApprovalRequired: "approval_required",
}


@dataclass(frozen=True, slots=True)
class Who:
    """Who calls."""

    key_id: UUID
    key_digest: bytes
    origin: Origin

    @property
    def actor(self) -> str:
        """As the audit log names them."""
        return f"ol_{self.key_id.hex}"


@dataclass(frozen=True, slots=True)
class Opening:
    """A call as it may begin.

    Attributes:
        spec: What is asked, with the version of the policy that it was screened by.
        texts: Its texts as the policy has them, by where they come from; None: as they are.
        call: What is to be said of it.
        task_id: The task that it will be.
        sealed: What was taken out of its texts, as it is filed.
    """

    spec: CallSpec
    texts: Mapping[Place, Sequence[str]] | None = None
    call: ScreenedCall = NOT_SCREENED
    task_id: UUID = field(default_factory=uuid7)
    sealed: Sealed | None = None


class Questions(Protocol):
    """Makes the calls by which models are asked; the fast lane itself."""

    def ask(
        self, spec: CallSpec, who: Who, *, within: bool
    ) -> Coroutine[Any, Any, LiveCall | KeptCall]:
        """Open a call that is not screened itself.

        Args:
            spec: What is asked.
            who: Who pays.
            within: It is part of a call that is being made, and has that call's slot.
        """

    def let_go(self, call: LiveCall | KeptCall) -> None:
        """End a call that nobody waits for any more."""


class Policing:
    """The safety policies of this process's callers."""

    def __init__(self, deps: Dependencies, questions: Questions) -> None:
        self._deps = deps
        self._questions = questions

    async def under(
        self,
        who: Who,
        spec: CallSpec,
        texts: Callable[[], Mapping[Place, Sequence[str]]],
        begin: Callable[[Opening], Awaitable[T]],
    ) -> T:
        """Begin a call under the policy that holds for its caller at that moment.

        Without one nothing is looked at. The statement that opens the call says whether it is
        still the policy that the texts were screened by; if not, they are screened again.

        Args:
            who: Who calls.
            spec: What is asked.
            texts: Gives its texts, by where they come from.
            begin: Begins it.

        Raises:
            OverlineError: The policy does not let it begin; that is on file, and nothing used up.
        """
        for _ in range(_TRIES):
            held = self._deps.screening.policies.of_key(who.key_id)
            try:
                if held is None or held.policy is None:
                    return await begin(Opening(spec))
                return await begin(
                    await self._screened(
                        held, dataclasses.replace(spec, policy=held.version), texts(), who
                    )
                )
            except PolicyChanged:
                await self._look_again(who)
        raise unsettled()

    async def _screened(
        self,
        held: Held[Policy],
        spec: CallSpec,
        texts: Mapping[Place, Sequence[str]],
        who: Who,
    ) -> Opening:
        """Return a call as its policy has it.

        Raises:
            OverlineError: The policy does not let it begin; that is on file, and nothing used up.
            PolicyChanged: Another one holds by now.
        """
        assert held.policy is not None
        task_id = uuid7()
        try:
            refuse_unscreenable(spec, held.policy)
            found, made = await screened(
                texts,
                policy=held.policy,
                version=held.version,
                task_id=task_id,
                actor=who.actor,
                ask=self.asks(who, spec, ends=False),
            )
            return Opening(spec, found, made, task_id, self._sealed(held, task_id, made))
        except StoppedByPolicy as stopped:
            code = _CODES[type(stopped.told)]
            refused = await file_screened_out(
                self._deps.db,
                ScreenedOut(
                    key_id=who.key_id,
                    key_digest=who.key_digest,
                    task_id=task_id,
                    policy=held.version,
                    user=spec.user,
                    tags=spec.tags,
                    endpoint=spec.endpoint,
                    model=spec.model,
                    code=code,
                    rule=stopped.rule,
                    trace_id=current_trace_id(),
                    decision=stopped.decision,
                    origin=who.origin,
                ),
            )
            if refused is not None:
                raise not_let_in(refused) from None
            record_refusal(code, "policy")
            raise stopped.told from None
        except (SafetyUnavailable, InvalidRequest) as refused:
            # No statement has asked yet whether this is the policy that holds.
            await self._look_again(who, unless=held)
            if isinstance(refused, SafetyUnavailable):
                record_refusal("safety_unavailable", "policy")
            raise

    def _sealed(self, held: Held[Policy], task_id: UUID, made: ScreenedCall) -> Sealed | None:
        """Return what was taken out of a call's texts, as it is filed; None: nothing was."""
        if not made.redactions:
            return None
        return self._deps.screening.shelf.seal(
            held.organisation_id, task_id, made.redactions.document()
        )

    async def _look_again(self, who: Who, unless: Held[Policy] | None = None) -> None:
        """Look which policy holds for a key now.

        Raises:
            Unauthenticated: The key is nobody's.
            PolicyChanged: It is another one than `unless`.
        """
        held = await self._deps.screening.policies.look_at_key(who.key_id, who.key_digest)
        if held is None:
            raise Unauthenticated("Incorrect API key provided.")
        if unless is not None and held.version != unless.version:
            raise PolicyChanged("another safety policy holds by now")

    def asks(self, who: Who, about: CallSpec, *, ends: bool) -> Ask:
        """Return what has a model judge: by calls of their own, metered as any other.

        Args:
            who: Who pays.
            about: What is judged belongs to it.
            ends: It is an answer: that there is no budget left to judge it, or no room under a
                limit, is no refusal any more.
        """

        async def ask(rule: Rule, texts: Sequence[str]) -> list[bool]:
            found = [False] * len(texts)
            for group in _asked_together(texts, short=0 if ends else _SHORT):
                text = "\n\n".join(texts[each] for each in group)
                if await self._flagged(rule, text, who, about, ends):
                    for each in group:
                        found[each] = True
            return found

        return ask

    async def _flagged(self, rule: Rule, text: str, who: Who, about: CallSpec, ends: bool) -> bool:
        try:
            for _ in range(_TRIES):
                try:
                    return await self._asked(rule, text, who, about, ends)
                except PolicyChanged:
                    if not ends:
                        raise
                # The answer keeps to the policy that its call began with; what judges it is new.
                policies = self._deps.screening.policies
                held = await policies.look_at_key(who.key_id, who.key_digest)
                about = dataclasses.replace(about, policy=held.version if held else 0)
            raise unsettled()
        except PolicyChanged:
            raise
        except (EngineError, OverlineError, StoreError, ValueError) as error:
            if not ends and isinstance(error, _REFUSED):
                raise
            raise DetectorFailed(rule.id, type(error).__name__) from error

    async def _asked(self, rule: Rule, text: str, who: Who, about: CallSpec, ends: bool) -> bool:
        call = await self._questions.ask(question(rule, text, about), who, within=ends)
        try:
            async for _ in call.pieces():
                pass
            return flagged(call.answer.text)
        except asyncio.CancelledError:
            self._questions.let_go(call)
            raise

    async def originals(self, known: Known) -> Redactions:
        """Return what was taken out of the texts of a call that is on file."""
        if not (known.answer or {}).get("redacted"):
            return Redactions()
        try:
            redactions, _ = await self._deps.screening.redactions(
                known.organisation_id, known.task_id
            )
        except PayloadRefused as refused:
            log.warning("the redactions of a call cannot be opened: %s", refused)
            return Redactions()
        return redactions


def _asked_together(texts: Sequence[str], *, short: int) -> list[list[int]]:
    """Return which texts a model is asked about at once; not those that have no letter."""
    groups: list[list[int]] = []
    short_ones: list[int] = []
    size = 0
    for number, text in enumerate(texts):
        if not any(map(str.isalpha, text)):
            continue
        if len(text) > short:
            groups.append([number])
            continue
        if size + len(text) > _TOGETHER:
            groups.append(short_ones)
            short_ones, size = [], 0
        short_ones.append(number)
        size += len(text)
    return [*groups, short_ones] if short_ones else groups
