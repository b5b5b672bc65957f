"""Anything a client can send gets an answer that the OpenAPI document describes, and no 500."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.parameters import ParameterLocation

from api.app import create_app
from settings import Settings
from store.provision import create_key, create_organisation, create_team
from tests.integration.running import RunningStack

load_all_checks()

#: The schema cannot say everything that is refused: `input` or `messages`, a blank text, a period
#: that ends before it begins.
_CHECKS = [check for check in CHECKS.get_all() if check.__name__ != "positive_data_acceptance"]

#: A parameter that nobody knows is ignored in an address, and the key is always sent: a guess whose
#: body is right, or that has none, and that breaks only these is no bad request.
_WITHOUT_REJECTION = [check for check in _CHECKS if check.__name__ != "negative_data_rejection"]

_RAW = create_app(Settings()).openapi()
_DOCUMENT = schemathesis.openapi.from_dict(_RAW)
_OPERATIONS = [result.ok() for result in _DOCUMENT.get_all_operations()]


@pytest.fixture(scope="session")
def poor_key(stack: RunningStack) -> str:
    """A key that may do everything and pay for nothing, so that no guess runs on a model."""
    organisation = create_organisation(stack.admin_url, "fuzz", cap_usd=Decimal("0.000000001"))
    team = create_team(stack.admin_url, organisation, "team")
    return create_key(stack.admin_url, organisation, team, "key").token


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=str)
@pytest.mark.parametrize("operation", _OPERATIONS, ids=lambda operation: operation.label)
def test_every_answer_is_described(
    operation: Any, mode: GenerationMode, stack: RunningStack, poor_key: str
) -> None:
    """Requests that fit the document, and requests that do not."""
    if mode is GenerationMode.NEGATIVE and not _has_input(operation):
        return
    url = stack.state().urls["api"]

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(max_examples=15, derandomize=True, suppress_health_check=list(HealthCheck))
    def every_case(case: Any) -> None:
        answer = case.call(base_url=url, headers={"Authorization": f"Bearer {poor_key}"})
        # What is too large is refused before anything else of it is looked at.
        judged = _has_a_bad_body(case) and answer.status_code != 413
        case.validate_response(answer, checks=_CHECKS if judged else _WITHOUT_REJECTION)

    every_case()


def _has_a_bad_body(case: Any) -> bool:
    body = case.meta.components.get(ParameterLocation.BODY)
    return body is not None and body.mode is GenerationMode.NEGATIVE


def _has_input(operation: Any) -> bool:
    described = _RAW["paths"][operation.path][operation.method]
    return bool(described.get("parameters") or described.get("requestBody"))
