"""What can go wrong while a text is judged.

* SafetyError
  * DetectorFailed   a rule could not be applied, and its policy says not to go on without it
"""

from __future__ import annotations

__all__ = ["DetectorFailed", "SafetyError"]


class SafetyError(Exception):
    """Base of what this package raises."""


class DetectorFailed(SafetyError):
    """A rule could not be applied; the text counts as not judged.

    Attributes:
        rule: Id of the rule.
    """

    def __init__(self, rule: str, why: str) -> None:
        """Takes the rule's id and a reason that says nothing of the text."""
        super().__init__(f"rule {rule!r} could not be applied: {why}")
        self.rule = rule
