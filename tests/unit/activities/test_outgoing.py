"""What passes of a model's words: the same whatever the pieces, and wherever an attempt ended."""

from __future__ import annotations

import json
import re
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from activities.outgoing import Outgoing
from safety.policy import Policy
from safety.redactions import Redactions

POLICY = Policy.of(
    {
        "hold_back": 16,
        "rules": [
            {"id": "bird", "kind": "deny_list", "words": ["Bluebird"], "action": "redact"},
            {"id": "stop", "kind": "deny_list", "words": ["full stop"], "action": "block"},
        ],
    }
)
ASKS = Policy.of(
    {
        "rules": [
            {
                "id": "bird",
                "kind": "deny_list",
                "words": ["Bluebird"],
                "action": "require_approval",
            }
        ]
    }
)
WORDS = ["one ", "two, ", "Bluebird ", "<EMAIL_ADDRESS_1>", " < ", "<EMAIL", " full stop", ". "]
_TOKEN = "<EMAIL_ADDRESS_1>"


def redactions() -> Redactions:
    made = Redactions()
    assert made.token("EMAIL_ADDRESS", "ada@example.com") == _TOKEN
    return made


def passed(outgoing: Outgoing, text: str, cuts: list[int]) -> list[str]:
    """Feed a text in pieces; returns what passed with each, the end's last."""
    places = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    pieces = [outgoing.feed(text[start:end]) for start, end in pairwise(places)]
    return [*pieces, outgoing.finish(outgoing.judged())]


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(WORDS), min_size=1, max_size=40).map("".join),
    st.lists(st.integers(0, 400), max_size=12),
    st.integers(0, 400),
)
def test_a_crash_anywhere_and_any_pieces_pass_the_same(
    text: str, cuts: list[int], crash: int
) -> None:
    whole = "".join(passed(Outgoing(POLICY, redactions()), text, []))
    pieces = passed(Outgoing(POLICY, redactions()), text, cuts)
    assert "".join(pieces) == whole
    # Every piece can be restored by itself: no token is cut in two.
    assert sum(piece.count(_TOKEN) for piece in pieces) == whole.count(_TOKEN)
    assert not re.search(r"(?<!\w)Bluebird(?!\w)", whole)

    # An attempt that ends in the middle, and the next one, which knows its ids and what passed.
    place = crash % (len(text) + 1)
    first = Outgoing(POLICY, redactions()).feed(text[:place])
    second = Outgoing(POLICY, redactions(), shown=first)
    rest = [second.feed(text[:place]), *passed(second, text[place:], cuts)]
    assert first + "".join(rest) == whole


def test_json_is_judged_by_its_strings_and_stays_json() -> None:
    outgoing = Outgoing(POLICY, redactions(), choosing=True, as_json=True)
    text = '{"tool": "note", "arguments": {"text": "the \\u0042luebird \\"flies\\""}}'
    assert outgoing.feed(text) == ""
    made = outgoing.finish(outgoing.judged())
    assert json.loads(made)["arguments"]["text"] == 'the [DENIED] "flies"'
    untouched = '{"tool": "note",  "arguments": {"text": "nothing"}}'
    again = Outgoing(POLICY, redactions(), choosing=True, as_json=True)
    again.feed(untouched)
    assert again.finish(again.judged()) == untouched


def test_what_a_person_may_be_asked_about_passes_as_a_whole_or_not() -> None:
    for text, held in (("nothing in it", False), ("the Bluebird", True)):
        answer = Outgoing(ASKS, redactions())
        assert answer.feed(text) == ""
        verdict = answer.judged()
        assert verdict is not None
        assert (verdict.outcome == "require_approval") is held
        assert answer.finish(verdict) == ("" if held else text)
    # Of a choice among tools it is the calls that wait.
    choice = Outgoing(ASKS, redactions(), choosing=True, as_json=True)
    choice.feed('{"q": "Bluebird"}')
    assert choice.finish(choice.judged()) == '{"q": "Bluebird"}'


def test_without_a_policy_everything_passes_as_it_comes() -> None:
    outgoing = Outgoing(None, Redactions())
    assert passed(outgoing, "one two", [3]) == ["one", " two", ""]
