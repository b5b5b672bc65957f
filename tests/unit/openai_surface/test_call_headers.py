"""Headers of an answer: whatever its caller called the model, they can be sent."""

from __future__ import annotations

from urllib.parse import unquote

import pytest

from api.openai.answering import call_headers


@pytest.mark.parametrize("model", ["gpt-4o:2024/x", "un-€", "un-x\r\nset-cookie: y=1", "50% off"])
def test_a_model_of_any_name_has_a_header_that_can_be_sent(model: str) -> None:
    headers = call_headers(task_id="t", model=model, cache="miss", replayed=False, cost_usd=None)
    said = headers["x-overline-model"]
    assert all("!" <= letter <= "~" for letter in said)
    assert unquote(said) == model
    assert said == model or "%" in said


def test_what_a_header_cannot_have_in_it_costs_no_answer() -> None:
    headers = call_headers(task_id="t", model="\ud800", cache="hit", replayed=True, cost_usd="0")
    assert headers["x-overline-model"].isascii()
