"""Which calls wait, and that the stricter of two policies holds."""

import itertools

import pytest

from api.tool_pins import stricter
from workflows.contracts import ApprovalWhen
from workflows.tool_calls import arguments_digest, needs_approval

A = ApprovalWhen(when={"city": "P*"})
B = ApprovalWhen(when={"days": "7"})
POLICIES = ["never", "always", "after_untrusted", A, B, ApprovalWhen(when={"city": "R*"})]
CALLS = [{}, {"city": "Paris"}, {"city": "Rome"}, {"city": "Oslo", "days": 7}, {"city": ["P"]}]


@pytest.mark.parametrize(
    ("policy", "arguments", "waits"),
    [
        ("never", {"city": "Paris"}, False),
        ("always", {}, True),
        (A, {"city": "Paris"}, True),
        (A, {"city": "paris"}, False),
        (A, {}, False),
        (B, {"days": 7}, True),
        (ApprovalWhen(when={"to": '*"boss"*'}), {"to": ["boss"]}, True),
        (ApprovalWhen(when={"text": "*rm*"}), {"text": "a\nrm -rf\nb"}, True),
    ],
)
def test_which_calls_wait(policy, arguments, waits):
    assert needs_approval(policy, arguments) is waits


@pytest.mark.parametrize("untrusted", [False, True])
@pytest.mark.parametrize(("one", "other"), [*itertools.product(POLICIES, POLICIES)])
def test_the_stricter_policy_never_lets_through_what_either_holds(one, other, untrusted):
    for arguments in CALLS:
        either = any(needs_approval(p, arguments, untrusted=untrusted) for p in (one, other))
        assert needs_approval(stricter(one, other), arguments, untrusted=untrusted) or not either


def test_after_words_from_outside_a_call_waits_and_before_it_does_not():
    assert not needs_approval("after_untrusted", {})
    assert needs_approval("after_untrusted", {}, untrusted=True)
    assert not needs_approval("never", {}, untrusted=True)


def test_the_digest_is_of_the_arguments_and_not_of_their_order():
    assert arguments_digest({"a": 1, "b": 2}) == arguments_digest({"b": 2, "a": 1})
    assert arguments_digest({"a": 1}) != arguments_digest({"a": "1"})
