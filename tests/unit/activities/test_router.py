"""Rules choose by capability, prompt length and price; the worst case is a full window."""

from dataclasses import replace
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from activities.router import choose
from store.pricing import UnknownName, Unpriced, models_of, worst_case_usd
from workflows.contracts import DecideInput, Tenant, Turn
from workflows.errors import NotFound

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


def test_what_is_too_long_for_every_rule_goes_to_the_roomiest_to_be_trimmed(catalogue):
    catalogue.routes["default"].candidates[1]["when"] = {"max_prompt_tokens": 600}
    decision = choose(catalogue, ask(chars=9000))
    assert names(decision) == ["large", "small"]
    assert "trimmed" in decision.candidates[0].reason


@pytest.mark.parametrize("wrong", [{"route": "nope"}, {"model": "nope"}, {"model": "vectors"}])
def test_unknown_names_name_the_known_ones(catalogue, wrong):
    with pytest.raises(UnknownName, match=r"known: (cheap, default|large, small)"):
        choose(catalogue, ask(**wrong))


def test_worst_case_is_the_dearest_full_window(catalogue):
    models = models_of(catalogue, "default", None)
    # large: 7,900 prompt tokens at $10 and 100 answer tokens at $30, a million each.
    assert worst_case_usd(catalogue, models, 100) == Decimal("0.082")
    assert worst_case_usd(catalogue, ["small"], 10**9) == Decimal("0.002")


def test_the_worst_case_bounds_every_mix_of_tokens(catalogue):
    odd = catalogue.prices["small"]
    catalogue.prices["small"] = replace(
        odd, cached_input_usd_per_million=Decimal(9), output_usd_per_million=Decimal(2)
    )
    # A cached token that is dearer than an answer's: the whole window may be that.
    assert worst_case_usd(catalogue, ["small"], 100) == Decimal("0.009")


def test_an_unpriced_model_is_never_served(catalogue):
    catalogue.prices.pop("small")
    assert worst_case_usd(catalogue, ["small", "large"], 100) == Decimal("0.082")
    with pytest.raises(Unpriced):
        worst_case_usd(catalogue, ["small"], 1)
    assert names(choose(catalogue, ask())) == ["large"]


def test_a_schema_is_for_models_that_can_be_held_to_it(catalogue):
    """And for all of them, held to nothing, when none can."""
    free = choose(catalogue, ask(), held=True)
    assert [(c.model, c.constrained) for c in free.candidates] == [
        ("small", False),
        ("large", False),
    ]
    able = replace(
        catalogue.models["large"],
        capabilities=(*catalogue.models["large"].capabilities, "json_schema"),
    )
    with_able = replace(catalogue, models={**catalogue.models, "large": able})
    held = choose(with_able, ask(), held=True)
    assert {(c.model, c.constrained) for c in held.candidates} == {("large", True)}
    assert "lacks json_schema" in held.refused[0]
    # Without a schema, or with one that no grammar expresses, nobody is preferred for it.
    assert names(choose(with_able, ask())) == names(choose(catalogue, ask()))
