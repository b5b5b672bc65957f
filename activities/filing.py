"""What filing a task takes besides its request: what its first call can cost, and a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from store.catalogue import Catalogue
from store.pricing import models_of, worst_case_usd
from workflows.contracts import TaskRequest, tool_call_tokens
from workflows.planning import first_turn

__all__ = ["digest_of_request", "first_call_usd"]


def first_call_usd(catalogue: Catalogue, request: TaskRequest) -> Decimal:
    """Return the most the first call of a task can cost, in USD.

    Raises:
        UnknownName: The catalogue has no such route or model.
        Unpriced: None of the models has a price.
    """
    turn, longest = first_turn(request), request.sampling.max_tokens
    if turn.purpose == "tool_call":
        longest = min(longest, tool_call_tokens(request.tools, turn.parallel))
    models = models_of(catalogue, request.route, request.model)
    return worst_case_usd(catalogue, models, longest)


def digest_of_request(stored: Mapping[str, Any]) -> str:
    """Return the digest that tells a repetition of a request from another one."""
    canonical = json.dumps(stored, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
