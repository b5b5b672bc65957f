"""The document people write: which rules apply where, and what follows from a match.

    mode: enforce            # or dry_run: everything is found and told, nothing is changed
    hold_back: 64            # characters of an answer that wait until nothing can match them
    on_failure: block        # or allow: go on without a rule that cannot be applied
    rules:
      - {id: ours, kind: allow_list, words: [support@example.com]}
      - {id: secrets, kind: secrets, on: [input, tool_result, output], action: redact}
      - {id: people, kind: pii, types: [EMAIL_ADDRESS, PHONE_NUMBER], regions: [US], action: redact}
      - {id: injected, kind: prompt_injection, on: [passage, tool_result], action: block}
      - {id: codename, kind: deny_list, words: [Bluebird], on: [output], action: block}

Rules apply in order. What an allow list matches is exempt from the rules behind it; otherwise the
first rule that matches a span decides about it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from safety.patterns import refuse_pattern
from safety.regions import refuse_regions

__all__ = ["PII_TYPES", "PLACES", "Action", "Kind", "Place", "Policy", "Rule"]

Action = Literal["allow", "flag", "redact", "block", "require_approval"]
Place = Literal["input", "passage", "tool_result", "output"]
Kind = Literal["allow_list", "deny_list", "secrets", "pii", "prompt_injection", "moderation"]

PLACES: tuple[Place, ...] = ("input", "passage", "tool_result", "output")

PiiType = Literal[
    "EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "US_SSN"
]
PII_TYPES: tuple[PiiType, ...] = (
    "EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "IBAN_CODE", "IP_ADDRESS", "US_SSN",
)  # fmt: skip

_Id = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
_Word = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_Pattern = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
_Region = Annotated[str, StringConstraints(pattern=r"^[A-Z]{2}$")]
_Model = Annotated[str, StringConstraints(min_length=1, max_length=200)]

# field: the kinds it belongs to
_BELONGS: dict[str, tuple[Kind, ...]] = {
    "words": ("allow_list", "deny_list"),
    "patterns": ("allow_list", "deny_list"),
    "types": ("pii",),
    "regions": ("pii",),
    "threshold": ("prompt_injection",),
    "model": ("moderation",),
}

# Of all rules together.
_MOST = {"words": 20_000, "patterns": 100}


def _many(rule: Any, field: str) -> int:
    found = rule.get(field) if isinstance(rule, Mapping) else getattr(rule, field, None)
    return len(found) if isinstance(found, list | tuple) else 0


class Rule(BaseModel):
    """One rule of a policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: _Id = Field(
        description="Its name in findings, decisions and refusals; unique in the policy."
    )
    kind: Kind = Field(description="How it finds what it is about.")
    on: tuple[Place, ...] = Field(
        PLACES, min_length=1, description="Where it applies; everywhere unless said otherwise."
    )
    action: Action = Field(
        description="What follows from a match. An allow list's is always `allow`."
    )
    words: tuple[_Word, ...] = Field(
        (), max_length=5000, description="Words and phrases, found whole and in any case (lists)."
    )
    patterns: tuple[_Pattern, ...] = Field(
        (), max_length=100, description="Regular expressions in RE2's syntax (lists)."
    )
    types: tuple[PiiType, ...] = Field(
        (), description="Which personal data; all of them where empty (pii)."
    )
    regions: tuple[_Region, ...] = Field(
        (),
        max_length=20,
        description="Countries whose phone numbers are found without +, as US or DE (pii).",
    )
    threshold: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Score from which a text counts as an injection (prompt_injection).",
    )
    model: _Model | None = Field(None, description="The model that is asked (moderation).")

    @cached_property
    def _key(self) -> int:
        return hash(self.model_dump_json())

    def __hash__(self) -> int:
        """Hash it once: a list may have thousands of words, and a stream asks at every step."""
        return self._key

    @model_validator(mode="before")
    @classmethod
    def _allow_lists_allow(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("kind") == "allow_list":
            return {"action": "allow", **given}
        return given

    @model_validator(mode="after")
    def _fits_its_kind(self) -> Self:
        for field, kinds in _BELONGS.items():
            if getattr(self, field) not in ((), None) and self.kind not in kinds:
                raise ValueError(f"{field!r} is for rules of kind {' or '.join(kinds)}")
        if self.kind == "allow_list" and self.action != "allow":
            raise ValueError("an allow list's action is 'allow'")
        if self.kind in ("allow_list", "deny_list") and not (self.words or self.patterns):
            raise ValueError("a list needs words or patterns")
        if self.kind == "moderation" and self.model is None:
            raise ValueError("a moderation rule needs a model")
        if self.kind == "moderation" and self.action == "redact":
            raise ValueError("a moderation rule judges whole texts: it cannot redact")
        if any(not word.strip() for word in self.words):
            raise ValueError("a word needs more than blanks")
        for pattern in self.patterns:
            refuse_pattern(pattern)
        if self.regions:
            refuse_regions(self.regions)
        return self


class Policy(BaseModel):
    """What an organisation or a team says about the texts of its calls and tasks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    mode: Literal["enforce", "dry_run"] = Field(
        "enforce", description="`dry_run` finds and tells everything and changes nothing."
    )
    rules: tuple[Rule, ...] = Field((), max_length=100, description="In order.")
    hold_back: int = Field(
        64,
        ge=0,
        le=4096,
        description="How many characters of an answer are held while it streams: a match of up to "
        "so many is caught before any of it was sent.",
    )
    on_failure: Literal["block", "allow"] = Field(
        "block",
        description="What follows when a rule cannot be applied: `block` refuses the text.",
    )

    @model_validator(mode="before")
    @classmethod
    def _not_too_much(cls, given: Any) -> Any:
        """Look before anything is compiled."""
        rules = given.get("rules") if isinstance(given, Mapping) else None
        if isinstance(rules, list | tuple):
            for field, most in _MOST.items():
                if sum(_many(rule, field) for rule in rules) > most:
                    raise ValueError(f"all rules together may have {most} {field}")
        return given

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        seen: set[str] = set()
        for rule in self.rules:
            if rule.id in seen:
                raise ValueError(f"two rules have the id {rule.id!r}")
            seen.add(rule.id)
        return self

    @classmethod
    def of(cls, document: Any) -> Policy:
        """Read a document; a bad one raises pydantic's `ValidationError`."""
        return cls.model_validate(document)

    def document(self) -> dict[str, Any]:
        """Return it as JSON takes it, without what is at its default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @cached_property
    def digest(self) -> str:
        """The same for policies that say the same."""
        whole = self.model_dump(mode="json")
        return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()

    def at(self, place: Place) -> tuple[Rule, ...]:
        """Return the rules for a place, in order."""
        return tuple(rule for rule in self.rules if place in rule.on)
