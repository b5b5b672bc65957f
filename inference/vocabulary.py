"""What each token id stands for, in bytes.

Text is put together from bytes, never from a library's decoded strings: only then can a
character that spans tokens be held back and a delta never be taken back. Read from the
artefact folder of a model (`tokenizer.json`, `model.json`) with the standard library alone,
because the engine's environment needs it too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Vocabulary:
    """A model's tokens.

    Attributes:
        pieces: Bytes of every id; control tokens are empty.
        eos_ids: Ids that end a text.
        context_window: Most tokens of prompt and output together.
        version: Identity of the tokenizer, so that ids are never read with another one.
    """

    pieces: tuple[bytes, ...]
    eos_ids: frozenset[int]
    context_window: int
    version: str

    def __len__(self) -> int:
        return len(self.pieces)

    def join(self, token_ids: list[int]) -> bytes:
        """The bytes of a run of tokens."""
        return b"".join(self.pieces[token_id] for token_id in token_ids)


def load_vocabulary(folder: Path) -> Vocabulary:
    """Reads the vocabulary out of a model's artefact folder.

    Raises:
        FileNotFoundError: The folder holds no artefact.
        ValueError: The artefact spells its tokens in a way this module does not know.
    """
    about: dict[str, Any] = json.loads((folder / "model.json").read_text("utf-8"))
    tokenizer: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    spelling = about["spelling"]
    if spelling == "byte_level":
        spell = _byte_level_speller()
    elif spelling == "byte_fallback":
        spell = _byte_fallback_speller
    elif spelling == "wordpiece":
        spell = _wordpiece_speller
    else:
        raise ValueError(f"unknown token spelling {spelling!r} in {folder}")
    by_id = {i: spell(piece) for piece, i in tokenizer["model"]["vocab"].items()}
    for added in tokenizer.get("added_tokens", ()):
        by_id[added["id"]] = b"" if added["special"] else added["content"].encode()
    size = max(by_id) + 1
    return Vocabulary(
        pieces=tuple(by_id.get(i, b"") for i in range(size)),
        eos_ids=frozenset(about["eos_ids"]),
        context_window=about["context_window"],
        version=about["tokenizer_version"],
    )


def byte_alphabet() -> dict[int, str]:
    """The printable character byte-level vocabularies write for each byte (GPT-2's table)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in kept}
    table.update(
        (byte, chr(0x100 + n))
        for n, byte in enumerate(byte for byte in range(256) if byte not in table)
    )
    return table


def _byte_level_speller() -> Any:
    back = {char: byte for byte, char in byte_alphabet().items()}

    def spell(piece: str) -> bytes:
        try:
            return bytes(back[char] for char in piece)
        except KeyError:
            # Tokens added by hand are spelled plainly.
            return piece.encode()

    return spell


def _wordpiece_speller(piece: str) -> bytes:
    return (piece[2:] if piece.startswith("##") else f" {piece}").encode()


def _byte_fallback_speller(piece: str) -> bytes:
    if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
        return bytes([int(piece[3:5], 16)])
    return piece.replace("▁", " ").encode()
