"""Text deltas: whole characters, no stop string, nothing taken back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.detokenizer import TextStream
from inference.models import byte_tokenizer
from inference.vocabulary import Vocabulary

BYTES = Vocabulary(
    pieces=tuple(bytes([n]) for n in range(256)) + (b"",) * len(byte_tokenizer.CONTROL),
    eos_ids=frozenset({byte_tokenizer.EOS_ID}),
    context_window=1000,
    version="test",
)


@given(st.text(max_size=40))
def test_deltas_are_whole_characters_and_add_up(text: str) -> None:
    stream = TextStream(BYTES)
    deltas = [stream.feed(byte) for byte in text.encode()]
    assert "".join(deltas) + stream.finish() == text
    assert all(len(delta) <= 1 for delta in deltas)


@given(st.text("ab\nU:é", max_size=30), st.lists(st.text("ab\nU:é", min_size=1, max_size=4)))
def test_stop_strings_cut_exactly_before_the_first(text: str, stops: list[str]) -> None:
    stream = TextStream(BYTES, stops)
    out = ""
    for byte in text.encode():
        out += stream.feed(byte)
        if stream.stopped_by is not None:
            break
    else:
        out += stream.finish()
    # The first stop string to be complete decides; of those complete together, the earliest.
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        assert (out, stream.stopped_by) == (text, None)
    else:
        _, at, stop = min(ends)
        assert (out, stream.stopped_by) == (text[:at], stop)


@given(st.text("ab\nU:é", max_size=30), st.integers(0, 60))
def test_refeeding_old_tokens_goes_on_where_the_reader_stopped(text: str, cut: int) -> None:
    raw = text.encode()
    whole = TextStream(BYTES, ["\nU:", "ab"])
    first = TextStream(BYTES, ["\nU:", "ab"])
    told = "".join(first.feed(byte) for byte in raw[:cut])
    again = TextStream(BYTES, ["\nU:", "ab"])
    assert "".join(again.feed(byte) for byte in raw[:cut]) == told
    rest = "".join(again.feed(byte) for byte in raw[cut:] if again.stopped_by is None)
    expected = ""
    for byte in raw:
        if whole.stopped_by is None:
            expected += whole.feed(byte)
    assert told + rest == expected


def test_half_a_character_at_the_end_is_dropped() -> None:
    stream = TextStream(BYTES)
    assert "".join(stream.feed(byte) for byte in "é🦙".encode()[:-1]) + stream.finish() == "é"


def test_control_tokens_are_no_text() -> None:
    stream = TextStream(BYTES)
    assert stream.feed(byte_tokenizer.EOS_ID) == ""
