"""The screen of a stream: the same whatever the pieces, and the same as of the whole answer."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from safety.policy import Policy
from safety.redactions import Redactions
from safety.screen import OutputScreen, Screen

RULES: list[dict[str, Any]] = [
    {"id": "ours", "kind": "allow_list", "words": ["ada@example.com"]},
    {"id": "names", "kind": "deny_list", "words": ["Bluebird", "Grey Heron", "c++"]},
    {"id": "forms", "kind": "deny_list", "patterns": [r"\bfoo(bar)?\b", r"x\d+y", r"^start"]},
    {"id": "people", "kind": "pii", "regions": ["US"]},
    {"id": "keys", "kind": "secrets"},
]
for _rule in RULES[1:]:
    _rule["action"] = "redact"

WORDS = (
    "Bluebird", "bluebird", "Blue", "bird", "Grey", "Heron", "grey\n heron", "c++", "foo", "foobar",
    "food", "x1y", "x12345", "y", "start", "ada@example.com", "bob@mail.example.org",
    "415-555-2671",
    "(415) 555-2671", "4111 1111 1111 1111", "DE89 3704 0044 0532 0130 00", "10.1.2.3", "é", "日本",
    "\u200b", "ｆｏｏ", "<EMAIL_ADDRESS_1>", "<NAME_1>", "<EMAIL", "lorem ipsum dolor", "-", ".",
    "@", "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "😀", "1234567890", "password=",
)  # fmt: skip


def policy(**more: Any) -> Policy:
    return Policy.of({"rules": RULES, **more})


def texts() -> st.SearchStrategy[str]:
    piece = st.one_of(st.sampled_from(WORDS), st.text(max_size=6), st.just("lorem ipsum " * 9))
    glue = st.sampled_from([" ", "", "\n", ", "])
    return st.lists(st.tuples(piece, glue), max_size=30).map(
        lambda pairs: "".join(word + sign for word, sign in pairs)
    )


def cut(text: str, places: Iterable[int]) -> list[str]:
    at = sorted({place % (len(text) + 1) for place in places})
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def passed(screen: OutputScreen, pieces: Iterable[str]) -> str:
    return "".join([*map(screen.feed, pieces), screen.finish()])


def known() -> Redactions:
    redactions = Redactions()
    redactions.token("EMAIL_ADDRESS", "eve@example.net")
    return redactions


@settings(max_examples=120)
@given(texts(), st.lists(st.integers(0, 5000), max_size=20), st.sampled_from([0, 1, 7, 64, 300]))
def test_pieces_make_no_difference(text: str, places: list[int], hold_back: int) -> None:
    rules = policy(hold_back=hold_back)
    whole, pieces, single = (OutputScreen(rules, known()) for _ in range(3))
    once = whole.feed(text)
    sent = "".join(map(pieces.feed, cut(text, places)))
    each = "".join(map(single.feed, text))
    assert once == sent == each  # also what is sent at any moment, not only in the end
    rest = whole.finish()
    assert rest == pieces.finish() == single.finish()
    assert whole.findings == pieces.findings == single.findings


@settings(max_examples=120)
@given(texts(), st.lists(st.integers(0, 5000), max_size=20))
def test_a_stream_is_screened_like_the_whole(text: str, places: list[int]) -> None:
    rules = policy(hold_back=300)
    stream = OutputScreen(rules, known())
    verdict = Screen(rules, known()).check([text], "output")
    assert passed(stream, cut(text, places)) == verdict.texts[0]
    assert tuple(stream.findings) == verdict.findings
    assert stream.outcome == verdict.outcome


@settings(max_examples=60)
@given(texts(), st.integers(0, 40), st.integers(1, 9))
def test_nothing_that_is_denied_is_ever_sent(text: str, at: int, size: int) -> None:
    """Whatever the pieces, a match that fits into what is held is caught whole."""
    text = f"{text[:at]} Bluebird {text[at:]} bob@mail.example.org "
    stream = OutputScreen(policy(), known())
    pieces = [text[place : place + size] for place in range(0, len(text), size)]
    sent = passed(stream, pieces)
    assert not re.search(r"(?i)\bbluebird\b", sent)
    assert "bob@mail.example.org" not in sent


@settings(max_examples=40)
@given(texts(), st.integers(1, 9))
def test_what_comes_behind_a_block_is_not_sent(text: str, size: int) -> None:
    rules = Policy.of(
        {"rules": [{"id": "stop", "kind": "deny_list", "words": ["Osprey"], "action": "block"}]}
    )
    whole = f"{text} Osprey {text}"
    stream = OutputScreen(rules, Redactions())
    sent = passed(stream, [whole[place : place + size] for place in range(0, len(whole), size)])
    assert sent == f"{text} "
    assert stream.blocked
    assert stream.outcome == "block"
    assert stream.findings[-1].start == len(text) + 1
    assert stream.feed("more") == stream.finish() == ""


def test_a_dry_run_holds_nothing_and_finds_everything() -> None:
    stream = OutputScreen(policy(mode="dry_run"), Redactions())
    assert [stream.feed(piece) for piece in ("Blue", "bird!", " ")] == ["Blue", "bird!", " "]
    assert stream.finish() == ""
    assert [found.rule for found in stream.findings] == ["names"]
    assert (stream.outcome, stream.would_be, stream.blocked) == ("allow", "redact", False)


def test_without_rules_for_answers_nothing_is_held() -> None:
    rules = Policy.of({"rules": [{"id": "in", "kind": "pii", "on": ["input"], "action": "block"}]})
    stream = OutputScreen(rules, Redactions())
    assert (stream.feed("bob@example.org"), stream.finish()) == ("bob@example.org", "")


def test_tokens_pass_and_come_back_even_cut_in_two() -> None:
    redactions = known()
    screen = OutputScreen(
        Policy.of(
            {
                "hold_back": 0,
                "rules": [
                    {
                        "id": "w",
                        "kind": "deny_list",
                        "words": ["email_address_1"],
                        "action": "block",
                    }
                ],
            }
        ),
        redactions,
    )
    restorer = redactions.restorer()
    said = "Write to <EMAIL_ADDRESS_1> or <b>nobody</b> <EMAIL_ADDRESS_2> <"
    got = [restorer.feed(screen.feed(character)) for character in said]
    got += [restorer.feed(screen.finish()), restorer.finish()]
    assert "".join(got) == "Write to eve@example.net or <b>nobody</b> <EMAIL_ADDRESS_2> <"
    assert not screen.blocked


def test_a_match_that_never_ends_is_decided_in_the_end() -> None:
    rules = Policy.of(
        {"rules": [{"id": "run", "kind": "deny_list", "patterns": ["a+"], "action": "redact"}]}
    )
    stream = OutputScreen(rules, Redactions())
    before = time.thread_time()
    sent = passed(stream, ["b"] + ["a" * 1000] * 100)
    assert time.thread_time() - before < 5
    assert set(sent) <= set("b[DENIED]")
    assert sum(found.end - found.start for found in stream.findings) == 100_000


@pytest.mark.parametrize("hold_back", [0, 64])
@pytest.mark.parametrize(
    "text",
    ["a" * 200_000, "@" * 200_000, "1 " * 100_000, "<A" * 100_000, "é" * 200_000, "a.b@" * 50_000,
     "ignore all " * 20_000, "x1" * 100_000],
    ids=lambda text: str(text)[:8],
)  # fmt: skip
def test_long_answers_take_linear_time(text: str, hold_back: int) -> None:
    rules = [*RULES, {"id": "inj", "kind": "prompt_injection", "action": "flag"}]
    stream = OutputScreen(Policy.of({"rules": rules, "hold_back": hold_back}), known())
    before = time.thread_time()
    passed(stream, [text[:5_000]])
    assert time.thread_time() - before < 15, "it should take well under a millisecond for a token"
