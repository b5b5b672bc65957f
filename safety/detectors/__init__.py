"""Ways of finding something in a text, one module for each, and which rule wants which.

A detector is made for a rule, kept, and used by many threads at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib import import_module
from typing import NamedTuple, Protocol

from safety.policy import Policy, Rule
from safety.text import Text

__all__ = ["Detector", "Match", "detector", "warm"]

# kind: the module whose `make` returns its detector; loaded when a policy has such a rule
_MODULES = {
    "allow_list": "safety.detectors.lists",
    "deny_list": "safety.detectors.lists",
    "secrets": "safety.detectors.secrets",
    "pii": "safety.detectors.pii",
    "prompt_injection": "safety.detectors.injection",
}


class Match(NamedTuple):
    """Where something was found.

    Attributes:
        start: Its first character in the text as given.
        end: The first behind it.
        label: What it is, as EMAIL_ADDRESS.
    """

    start: int
    end: int
    label: str


class Detector(Protocol):
    """Finds one rule's matches."""

    def find(self, text: Text, start: int) -> Iterator[Match]:
        """Yield matches that begin at `start` or behind it; what is before it is context."""
        ...


@lru_cache(maxsize=1024)
def detector(rule: Rule) -> Detector:
    """Return the detector for a rule; the first of a kind may take seconds to load."""
    make: Callable[[Rule], Detector] = import_module(_MODULES[rule.kind]).make
    return make(rule)


def warm(policy: Policy) -> None:
    """Load what a policy needs. Takes seconds where it has rules for secrets: not on a loop.

    What cannot be loaded is told where it is used: there the policy says what follows.
    """
    for rule in policy.rules:
        if rule.kind in _MODULES:
            with suppress(Exception):
                detector(rule)
