"""Token ids that llama.cpp keeps to itself, found again.

While a character is incomplete, llama.cpp sends nothing; when its last token comes, it sends the
whole text but only the last id. How many ids are missing is known, and the bytes they stand for.
Most often one run of ids alone fits. Where several do, the one that merges earliest is taken:
it is what the tokenizer itself would have written. Where none fits (the text was not valid
UTF-8, so its bytes are not known), the caller has to ask the engine again.
"""

from __future__ import annotations

from collections.abc import Mapping

from inference.vocabulary import Vocabulary

_ENOUGH = 256


def index_by_bytes(vocabulary: Vocabulary) -> dict[bytes, int]:
    """The lowest id for every spelling."""
    found: dict[bytes, int] = {}
    for token_id, piece in enumerate(vocabulary.pieces):
        if piece:
            found.setdefault(piece, token_id)
    return found


def find_lost(
    by_bytes: Mapping[bytes, int], text: str, count: int, last_piece: bytes
) -> list[int] | None:
    """The `count` ids that precede the last token of `text`.

    Args:
        by_bytes: See `index_by_bytes`.
        text: The text of the missing tokens and of the last one, together.
        count: How many are missing, at least 1.
        last_piece: Bytes of the last token.

    Returns:
        The ids, or None when the text does not tell them.
    """
    raw = text.encode()
    if "�" in text or not raw.endswith(last_piece):
        return None
    runs: list[list[int]] = []
    _split(by_bytes, raw[: len(raw) - len(last_piece)], count, [], runs)
    # Merges that the tokenizer learned early have low ids.
    return min(runs, key=lambda run: (sorted(run), run), default=None)


def _split(
    by_bytes: Mapping[bytes, int], raw: bytes, count: int, head: list[int], out: list[list[int]]
) -> None:
    if count == 0 or len(raw) < count or len(out) >= _ENOUGH:
        if count == 0 and not raw:
            out.append(head)
        return
    for length in range(len(raw) - count + 1, 0, -1):
        token_id = by_bytes.get(raw[:length])
        if token_id is not None:
            _split(by_bytes, raw[length:], count - 1, [*head, token_id], out)
