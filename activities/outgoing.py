"""What of a model's words is passed on while they come: to the journal, and so to everybody.

The journal's token ids are what the engine made; its text is what the task's policy lets pass. An
attempt that goes on from it feeds the text of all those ids again, and what the screen passes on of
that was written before. A token that stands for something that was taken out is never cut in two,
so that whoever puts the original back can do so piece by piece.

Some words pass as a whole or not at all: JSON, in whose escapes nothing could be found; what a
model judges first; and what a person may have to be asked about.
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
        choosing: They are a choice among tools: a person is asked about the calls, not about them.
        as_json: They are JSON: such a choice, or an answer that obeys a schema.
        shown: What an earlier attempt has passed on.
    """

    def __init__(
        self,
        policy: Policy | None,
        redactions: Redactions,
        *,
        choosing: bool = False,
        as_json: bool = False,
        shown: str = "",
    ) -> None:
        self._screen = Screen(policy, redactions) if policy is not None else None
        self._stream: OutputScreen | None = None
        self._redactions = redactions
        self._choosing = choosing
        self._as_json = as_json
        self._text = ""
        self._sent = len(shown)
        if self._screen is not None and not as_json and not _wants_all(self._screen.policy):
            self._stream = self._screen.output()

    def closed(self) -> bool:
        """Tell whether nothing more will pass, so that no more need be made."""
        return self._stream is not None and self._stream.blocked

    def feed(self, text: str) -> str:
        """Take what the engine said, and return what passes now."""
        if self._screen is None:
            return text
        if self._stream is None:
            self._text += text
            return ""
        self._text += self._stream.feed(text)
        return self._next(self._redactions.beginning(self._text))

    def judged(self) -> Verdict | None:
        """Tell what the policy says of it, now that nothing more comes; its one text may pass."""
        if self._screen is None:
            return None
        if self._stream is None:
            return self._whole(self._screen)
        self._text += self._stream.finish()
        return Verdict(
            texts=(self._text,),
            findings=tuple(self._stream.findings),
            outcome=self._stream.outcome,
            would_be=self._stream.would_be,
            mode=self._screen.policy.mode,
            failed=self._stream.failed,
        )

    def finish(self, verdict: Verdict | None) -> str:
        """Return what passes yet.

        Args:
            verdict: What `judged` said, and models and people after it.
        """
        if verdict is None:
            return ""
        if self._stream is None:
            held = verdict.outcome == "require_approval" and not self._choosing
            self._text = "" if verdict.outcome == "block" or held else verdict.texts[0]
        return self._next(len(self._text))

    def _whole(self, screen: Screen) -> Verdict:
        if not self._as_json:
            return screen.check([self._text], "output")
        return screen.check_json(self._text, "output")

    def _next(self, end: int) -> str:
        new = self._text[self._sent : end]
        self._sent = max(self._sent, end)
        return new


def _wants_all(policy: Policy) -> bool:
    """Tell whether an answer is judged as a whole."""
    return policy.mode == "enforce" and any(
        rule.kind == "moderation" or rule.action == "require_approval"
        for rule in policy.at("output")
    )
