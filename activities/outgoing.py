"""What of a model's words is passed on while they come: to the journal, and so to everybody.

The journal's token ids are what the engine made; its text is what the task's policy lets pass. An
attempt that goes on from it feeds the text of all those ids again, and what the screen passes on of
that was written before. A token that stands for something that was taken out is never cut in two,
so that whoever puts the original back can do so piece by piece.
"""

from __future__ import annotations

from safety.findings import Verdict
from safety.policy import Policy
from safety.redactions import Redactions
from safety.screen import OutputScreen, Screen

__all__ = ["BLOCKED", "Outgoing"]

#: Why a generation ended whose words were not to go on.
BLOCKED = "content_filter"


class Outgoing:
    """Screens the words of one generation.

    Args:
        policy: The task's; none: everything passes as it comes.
        redactions: What stands for what in the task's texts.
        whole: Nothing passes before the end: a choice among tools is judged as one.
        shown: What an earlier attempt has passed on.
    """

    def __init__(
        self,
        policy: Policy | None,
        redactions: Redactions,
        *,
        whole: bool,
        shown: str = "",
    ) -> None:
        self._screen: Screen | None = None
        self._stream: OutputScreen | None = None
        self._redactions = redactions
        self._whole = whole
        self._passed = ""
        self._sent = len(shown)
        self._verdict: Verdict | None = None
        if policy is not None:
            self._screen = Screen(policy, redactions)
            self._stream = self._screen.output()

    def closed(self) -> bool:
        """Tell whether nothing more will pass, so that no more need be made."""
        return self._stream is not None and not self._whole and self._stream.blocked

    @property
    def verdict(self) -> Verdict | None:
        """What was decided, once all was said."""
        return self._verdict

    def feed(self, text: str) -> str:
        """Take what the engine said, and return what passes now."""
        if self._stream is None:
            return text
        self._passed += text if self._whole else self._stream.feed(text)
        return "" if self._whole else self._next(self._redactions.beginning(self._passed))

    def finish(self) -> str:
        """Return what passes yet: nothing more comes."""
        if self._screen is None or self._stream is None:
            return ""
        if self._whole:
            self._verdict = self._screen.check([self._passed], "output")
            blocked = self._verdict.outcome == "block"
            self._passed = "" if blocked else self._verdict.texts[0]
        else:
            self._passed += self._stream.finish()
            self._verdict = Verdict(
                texts=(self._passed,),
                findings=tuple(self._stream.findings),
                outcome=self._stream.outcome,
                would_be=self._stream.would_be,
                mode=self._screen.policy.mode,
                failed=self._stream.failed,
            )
        return self._next(len(self._passed))

    def _next(self, end: int) -> str:
        new = self._passed[self._sent : end]
        self._sent = max(self._sent, end)
        return new
