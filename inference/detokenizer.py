"""Token ids in, text out, as a stream that never has to take anything back.

What has been emitted is a function of the tokens seen so far and of nothing else, not even of
how they were grouped. So a generation that is continued from its journal re-feeds the old
tokens, drops what they give, and goes on exactly where the reader stopped.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from inference.vocabulary import Vocabulary


class TextStream:
    """Turns tokens into text deltas and watches for stop strings.

    Attributes:
        stopped_by: The stop string that was met, or None. Nothing is emitted after that.
    """

    def __init__(self, vocabulary: Vocabulary, stop: Sequence[str] = ()) -> None:
        """Starts before the first token.

        Args:
            vocabulary: The model's tokens.
            stop: Strings that end the text; none of them empty.
        """
        self.stopped_by: str | None = None
        self._pieces = vocabulary.pieces
        self._stop = tuple(stop)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._held = ""

    def feed(self, token_id: int) -> str:
        """Takes one token and returns the text that is certain now, often none."""
        if self.stopped_by is not None:
            return ""
        text = self._decoder.decode(self._pieces[token_id])
        if not self._stop:
            return text
        self._held += text
        found = [(at, stop) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            certain, self._held = self._held[:at], ""
            return certain
        keep = max(_overlap(self._held, stop) for stop in self._stop)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return certain

    def finish(self) -> str:
        """Ends the text: what was held back for a stop string that never came is emitted.

        A character whose last bytes never came is dropped: half a character is no text.
        """
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
