"""Rules choose by capability, prompt length and price; the worst case is a full window."""

from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from activities.router import choose
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from workflows.contracts import DecideInput, Tenant, Turn
from workflows.errors import ContextTooLong, NotFound

TENANT = Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4())


def ask(*, route="default", model=None, purpose="answer", chars=30) -> DecideInput:
    return DecideInput(
        tenant=TENANT,
        task_id=UUID(int=1),
        step=1,
        call_key="k",
        route=route,
        model=model,
        turn=Turn(purpose=purpose, tools=("search",) if purpose == "tool_call" else ()),
        prompt_chars=chars,
        max_tokens=100,
    )


def names(decision):
    return [candidate.model for candidate in decision.candidates]


def test_order_of_the_route_with_a_reason_each(catalogue):
    decision = choose(catalogue, ask())
    assert names(decision) == ["small", "large"]
    assert all(candidate.reason for candidate in decision.candidates)
    assert decision.candidates[1].urls == ("h:1", "h:2")


def test_a_long_prompt_goes_past_the_small_model(catalogue):
    decision = choose(catalogue, ask(chars=3000))
    assert names(decision) == ["large"]
    assert "small" in decision.refused[0]


def test_a_tool_choice_needs_a_model_that_obeys_a_grammar(catalogue):
    decision = choose(catalogue, ask(purpose="tool_call"))
    assert names(decision) == ["small"]
    assert "lacks grammar" in decision.refused[0]


def test_a_model_asked_for_by_name(catalogue):
    assert names(choose(catalogue, ask(model="large"))) == ["large"]


def test_price_ceiling(catalogue):
    with pytest.raises(NotFound, match="above \\$5"):
        choose(catalogue, ask(route="cheap"))


def test_only_too_long_is_said_to_be_too_long(catalogue):
    catalogue.routes["default"].candidates[1]["when"] = {"max_prompt_tokens": 600}
    with pytest.raises(ContextTooLong):
        choose(catalogue, ask(chars=9000))


@pytest.mark.parametrize("wrong", [{"route": "nope"}, {"model": "nope"}, {"model": "vectors"}])
def test_unknown_names_name_the_known_ones(catalogue, wrong):
    with pytest.raises(UnknownName, match=r"known: (cheap, default|large, small)"):
        choose(catalogue, ask(**wrong))


def test_worst_case_is_the_dearest_full_window(catalogue):
    models = models_of(catalogue, "default", None)
    # large: 7,900 prompt tokens at $10 and 100 answer tokens at $30, a million each.
    assert worst_case_usd(catalogue, models, 100) == Decimal("0.082")
    assert worst_case_usd(catalogue, ["small"], 10**9) == Decimal("0.002")


def test_an_unpriced_model_is_never_served(catalogue):
    catalogue.prices.pop("small")
    with pytest.raises(Unpriced):
        worst_case_usd(catalogue, ["small"], 1)
    assert names(choose(catalogue, ask())) == ["large"]
