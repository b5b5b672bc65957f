"""Anything a client can send gets an answer that the OpenAPI document describes, and no 500."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS, load_all_checks

from store.provision import create_key, create_organisation, create_team
from tests.integration.running import RunningStack

load_all_checks()

#: The schema cannot say everything that is refused: `input` or `messages`, a blank text, a period
#: that ends before it begins.
_TOO_STRICT = {"positive_data_acceptance"}
_CHECKS = [check for name, check in CHECKS._items.items() if name not in _TOO_STRICT]


@pytest.fixture(scope="session")
def fuzzed(stack: RunningStack) -> Any:
    """The document of the running API."""
    return schemathesis.openapi.from_url(f"{stack.state().urls['api']}/openapi.json")


@pytest.fixture(scope="session")
def poor_key(stack: RunningStack) -> str:
    """A key that may do everything and pay for nothing, so that no guess runs on a model."""
    organisation = create_organisation(stack.admin_url, "fuzz", cap_usd=Decimal("0.000000001"))
    team = create_team(stack.admin_url, organisation, "team")
    return create_key(stack.admin_url, organisation, team, "key").token


document = schemathesis.pytest.from_fixture("fuzzed")


@document.parametrize()
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_described(case: Any, poor_key: str) -> None:
    case.call_and_validate(headers={"Authorization": f"Bearer {poor_key}"}, checks=_CHECKS)
