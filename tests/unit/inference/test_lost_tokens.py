"""Ids llama.cpp does not tell are found by their bytes."""

from __future__ import annotations

from inference.engines.lost_tokens import find_lost, index_by_bytes
from inference.vocabulary import Vocabulary

PIECES = (b"a", b"\xf0\x9f", b"\xa6", b"\x99", b"\xf0", b"\x9f\xa6", b" ", b"\xf0\x9f")
VOCABULARY = Vocabulary(PIECES, frozenset({0}), 10, "test")
BY_BYTES = index_by_bytes(VOCABULARY)


def test_the_earliest_merge_wins() -> None:
    assert find_lost(BY_BYTES, "🦙", 2, b"\x99") == [1, 2]


def test_the_count_decides() -> None:
    assert find_lost(BY_BYTES, " 🦙", 3, b"\x99") == [6, 1, 2]
    assert find_lost(BY_BYTES, "🦙", 1, b"\x99") is None


def test_text_that_was_not_utf8_tells_nothing() -> None:
    assert find_lost(BY_BYTES, "�a", 1, b"a") is None
    assert find_lost(BY_BYTES, "🦙", 2, b"a") is None
