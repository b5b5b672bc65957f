"""Screens an answer that is JSON: as a whole, by what is in it.

In its escapes nothing could be found while it comes, and what is taken out must leave it JSON. So
none of it is passed on before its end; in a dry run it is passed on as it comes.
"""

from __future__ import annotations

from collections.abc import Callable

from safety.findings import Finding, Verdict

__all__ = ["JsonScreen"]


class JsonScreen:
    """Screens one answer; used as `OutputScreen` is.

    Attributes:
        findings: What was found; the places are those in the strings.
        blocked: Nothing of it is passed on.
    """

    def __init__(self, judge: Callable[[str], Verdict], *, enforced: bool) -> None:
        """Takes what judges the whole, and whether it has a say."""
        self._judge = judge
        self._enforced = enforced
        self._pieces: list[str] = []
        self.findings: list[Finding] = []
        self.blocked = False

    def feed(self, piece: str) -> str:
        """Take a piece, and return what can be passed on now."""
        self._pieces.append(piece)
        return "" if self._enforced else piece

    def finish(self) -> str:
        """Return the rest: nothing more comes.

        Raises:
            DetectorFailed: A rule could not be applied, and the policy says not to go on.
        """
        if not self._pieces:
            return ""
        verdict = self._judge("".join(self._pieces))
        self._pieces.clear()
        self.findings.extend(verdict.findings)
        self.blocked = verdict.outcome in ("block", "require_approval")
        return verdict.texts[0] if self._enforced and not self.blocked else ""
