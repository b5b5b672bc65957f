"""What a screen decides about whole texts: rules in order, actions, redactions, dry runs."""

from __future__ import annotations

from typing import Any

import pytest

from safety import patterns
from safety.errors import DetectorFailed
from safety.findings import Finding
from safety.policy import Policy
from safety.redactions import Redactions
from safety.screen import Screen


def screen(*rules: dict[str, Any], **more: Any) -> Screen:
    return Screen(Policy.of({"rules": list(rules), **more}), Redactions())


def deny(*words: str, action: str = "redact", **more: Any) -> dict[str, Any]:
    return {"id": "names", "kind": "deny_list", "words": list(words), "action": action, **more}


def test_a_redacted_text_comes_back_for_the_caller() -> None:
    judge = screen(deny("Bluebird", "Ada Lovelace"))
    verdict = judge.check(["ada  lovelace leads bluebird", "Bluebird? BLUEBIRD"], "input")
    assert verdict.outcome == "redact"
    assert verdict.texts == ("<DENIED_1> leads <DENIED_2>", "<DENIED_3>? <DENIED_4>")
    assert [judge.redactions.restore(text) for text in verdict.texts] == [
        "ada  lovelace leads bluebird",
        "Bluebird? BLUEBIRD",
    ]
    again = judge.check(["Bluebird", verdict.texts[0]], "passage")
    assert again.texts == ("<DENIED_3>", verdict.texts[0])  # the same token, and tokens stay


def test_what_is_redacted_in_an_answer_does_not_come_back() -> None:
    judge = screen(deny("Bluebird"))
    asked = judge.check(["Bluebird"], "input").texts[0]
    verdict = judge.check([f"{asked} is not bluebird"], "output")
    assert verdict.texts == ("<DENIED_1> is not [DENIED]",)


def test_words_are_found_whole_in_any_case_and_disguise() -> None:
    judge = screen(deny("straße", "c++", "new york", "bad"))

    def hit(text: str) -> bool:
        return judge.check([text], "input").outcome != "allow"

    for text in (
        "STRASSE!",
        "in C++17",
        "New\n York",
        "ｂａｄ",
        "b\u200bad",
        "b\u034fa\ufe0fd",
        "bad bad",
        "(bad)",
    ):
        assert hit(text), text
    for text in ("badly", "not_bad", "newyork", "straßenbahn", "b ad"):
        assert not hit(text), text
    found = judge.check(["é bad and bad, ｂ\u200bａｄ"], "input").findings
    assert [(each.start, each.end) for each in found] == [(2, 5), (10, 13), (15, 19)]


def test_accents_and_letters_that_look_like_others_hide_no_word() -> None:
    judge = screen(deny("Bluebird", "Zürich", "\u0915\u093f"))
    for text in ("blüebird", "blu\u0308ebird", "BLUEBÏRD", "bluebırd", "bŁuebird", "bluebirđ",
                 "ʙʟᴜᴇʙɪʀᴅ", "b̶l̶uebird", "ＢＬＵＥＢÏＲＤ", "zurich",
                 "ZU\u0308RICH", "\u0915\u093f"):  # fmt: skip
        assert judge.check([f"so {text}."], "input").findings, text
    # A vowel of another script is no accent.
    assert not judge.check(["\u0915"], "input").findings
    (found,) = judge.check(["é blüebïrd ö"], "input").findings
    assert (found.start, found.end) == (2, 10)


def test_the_first_rule_that_matches_decides_and_an_allow_list_exempts() -> None:
    judge = screen(
        {"id": "ours", "kind": "allow_list", "patterns": [r"bob@example\.com"]},
        {"id": "mail", "kind": "deny_list", "patterns": [r"\w+@\w+\.com"], "action": "redact"},
        {"id": "at", "kind": "deny_list", "patterns": ["@", r"a@b\.com and"], "action": "flag"},
    )
    verdict = judge.check(["bob@example.com, a@b.com and @"], "input")
    assert verdict.texts == ("bob@example.com, <DENIED_1> and @",)
    assert [(found.rule, found.start, found.end) for found in verdict.findings] == [
        ("mail", 17, 24),
        ("at", 24, 28),
        ("at", 29, 30),
    ]
    assert verdict.outcome == "redact"


@pytest.mark.parametrize("action", ["flag", "block", "require_approval"])
def test_actions_that_leave_the_text_as_it_is(action: str) -> None:
    verdict = screen(deny("bad", action=action)).check(["so bad", "good"], "input")
    assert (verdict.outcome, verdict.texts) == (action, ("so bad", "good"))
    assert verdict.decisive == Finding("names", "deny_list", action, "input", 0, 3, 6, "DENIED")  # type: ignore[arg-type]
    assert Finding.of(verdict.findings[0].document()) == verdict.findings[0]


def test_a_dry_run_tells_everything_and_changes_nothing() -> None:
    verdict = screen(deny("bad", action="block"), mode="dry_run").check(["bad"], "input")
    assert (verdict.outcome, verdict.would_be, verdict.texts) == ("allow", "block", ("bad",))
    assert len(verdict.findings) == 1


def test_rules_apply_where_they_say() -> None:
    judge = screen(deny("bad", on=["passage"]))
    assert judge.check(["bad"], "input").findings == ()
    assert judge.check(["bad"], "passage").findings
    assert judge.applies("passage")
    assert not judge.applies("output")


def test_a_text_of_the_callers_that_looks_like_a_token_stays_theirs() -> None:
    judge = screen(deny("bad"))
    verdict = judge.check(["a <DENIED_1> bad <DENIED_2>", "bad"], "input")
    assert verdict.texts == ("a <DENIED_1> <DENIED_3> <DENIED_2>", "<DENIED_3>")
    kept = Redactions.of(judge.redactions.document())
    assert kept.restore(verdict.texts[0]) == "a <DENIED_1> bad <DENIED_2>"
    assert kept.token("DENIED", "other") == "<DENIED_4>"


def test_moderation_is_left_to_who_can_ask_a_model() -> None:
    judge = screen(
        {"id": "ask", "kind": "moderation", "model": "guard", "action": "block", "on": ["input"]},
        deny("bad", action="flag"),
    )
    verdict = judge.check(["bad", "fine"], "input")
    assert [rule.model for rule in verdict.moderation] == ["guard"]
    assert verdict.outcome == "flag"
    done = verdict.moderated(verdict.moderation[0], "input", [False, True])
    assert (done.outcome, done.moderation) == ("block", ())
    assert done.decisive == Finding("ask", "moderation", "block", "input", 1, 0, 4, "MODERATION")
    missed = verdict.moderated(verdict.moderation[0], "input", [False, False], failed=True)
    assert (missed.outcome, missed.failed) == ("flag", ("ask",))


HARD = {"id": "hard", "kind": "deny_list", "patterns": ["a.*b|a"], "action": "block"}


def test_what_a_rule_that_cannot_be_applied_means_is_the_policys_to_say(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each search is linear, and there are as many as matches: it is given up in time."""
    monkeypatch.setattr(patterns, "_SECONDS", 0.0)
    text = "a" * 20_000
    with pytest.raises(DetectorFailed, match="'hard'") as failed:
        screen(HARD).check([text], "input")
    assert failed.value.rule == "hard"
    monkeypatch.setattr(patterns, "_SECONDS", -1.0)  # in a stream there is little text at a time
    with pytest.raises(DetectorFailed):
        screen(HARD).output().feed(text)
    monkeypatch.setattr(patterns, "_SECONDS", 0.0)
    for more in ({"on_failure": "allow"}, {"mode": "dry_run"}):
        judge = screen(HARD, deny("oops"), **more)
        verdict = judge.check([f"{text} oops"], "input")
        assert verdict.failed == ("hard",)
        assert [found.rule for found in verdict.findings] == ["names"]


def test_a_text_without_a_form_in_utf8_is_judged_too() -> None:
    verdict = screen(deny("bad")).check(["\ud800 bad \udfff"], "input")
    assert verdict.texts == ("\ud800 <DENIED_1> \udfff",)
