"""The models' own tokenizers, in the harness: text to ids exactly as the engine would do it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from inference.detokenizer import TextStream
from inference.errors import ArtefactError
from inference.vocabulary import Vocabulary, load_vocabulary


@dataclass(frozen=True)
class ModelTokenizer:
    """A model's tokenizer and template.

    Attributes:
        name: The model's name.
        version: Identity of tokenizer and template together; ids of another version mean
            something else.
        context_window: Most tokens of prompt and output together.
        eos_ids: Ids that end a text.
        bos_id: Id that must begin a prompt, or None. `encode_chat` puts it there, `encode`
            does not.
        chat_template: Jinja text.
        stops: Strings a generation under that template must stop at; only models that were
            not taught to end a turn have any. Add them to the caller's own.
    """

    name: str
    version: str
    context_window: int
    eos_ids: tuple[int, ...]
    bos_id: int | None
    chat_template: str
    stops: tuple[str, ...]
    _plain: Tokenizer
    _special: Tokenizer
    _vocabulary: Vocabulary
    _control: tuple[str, ...]

    def encode(self, text: str, special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: Any text without lone surrogates.
            special: Whether the names of control tokens in it mean those tokens. False for
                everything a caller wrote: what looks like a control token is then only text.
        """
        tokenizer = self._special if special else self._plain
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: list[int]) -> str:
        """The text of ids; control tokens are no text, broken characters become U+FFFD."""
        return self._vocabulary.join(token_ids).decode("utf-8", "replace")

    def told(self, token_ids: list[int], stop: Sequence[str]) -> str:
        """The text that an engine has told of generated ids: what may begin a stop string waits."""
        text = TextStream(self._vocabulary, stop)
        return "".join(text.feed(token_id) for token_id in token_ids)

    @property
    def size(self) -> int:
        """How many tokens there are: ids are below it."""
        return len(self._vocabulary)

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """Names of the control tokens, longest first."""
        return self._control

    def count(self, text: str) -> int:
        """Tokens of a text, control tokens' names taken as text."""
        return len(self.encode(text))


def load_tokenizer(model_dir: Path) -> ModelTokenizer:
    """Loads a model's artefact folder.

    Raises:
        FileNotFoundError: There is none.
        ArtefactError: It is damaged.
    """
    about: dict[str, Any] = json.loads((model_dir / "model.json").read_text("utf-8"))
    text = (model_dir / "tokenizer.json").read_text("utf-8")
    try:
        # Two of them, because the switch is a state of the object and callers may be threads.
        plain, special = Tokenizer.from_str(text), Tokenizer.from_str(text)
        plain.encode_special_tokens = True
        vocabulary = load_vocabulary(model_dir)
        added = special.get_added_tokens_decoder().values()
        control = [token.content for token in added if token.special]
    except Exception as error:
        raise ArtefactError(f"{model_dir} cannot be read: {error}") from error
    return ModelTokenizer(
        name=about["name"],
        version=about["tokenizer_version"],
        context_window=about["context_window"],
        eos_ids=tuple(about["eos_ids"]),
        bos_id=about["bos_id"],
        chat_template=(model_dir / "chat_template.jinja").read_text("utf-8"),
        stops=tuple(about["stops"]),
        _plain=plain,
        _special=special,
        _vocabulary=vocabulary,
        _control=tuple(sorted(control, key=len, reverse=True)),
    )
