"""Where a model call waits for the engine, and behind whom.

One task queue a deployment class, apart from the queue of all other work: a worker takes from it as
many calls as the engine runs at a time, and the rest wait in Temporal, where they have an order.
First by priority; at one priority, teams take turns, and a call moves its team back by the tokens
it is likely to cost. So teams share an engine by tokens, and a team's thousandth call waits behind
another team's first.
"""

from __future__ import annotations

from temporalio.common import Priority

from workflows.contracts import PriorityLevel, Tenant

__all__ = ["model_queue", "task_turn", "turn_at_engine"]

# Temporal's scale has five steps; the ones between are free for more.
_KEYS: dict[PriorityLevel, int] = {"interactive": 1, "default": 3, "batch": 5}
# A call of so many tokens has weight one. Only what weights have to each other counts.
_TOKENS = 1000
# A team of which nothing is known yet is taken for one with short answers: its first call goes
# early, and soon the ledger knows better.
_UNKNOWN_OUTPUT_TOKENS = 64
# What Temporal takes.
_LEAST, _MOST = 0.001, 1000.0


def model_queue(task_queue: str, deployment_class: str) -> str:
    """Return the task queue of a deployment class, beside the one of all other work."""
    return f"{task_queue}-model-{deployment_class}"


def task_turn(tenant: Tenant, level: PriorityLevel) -> Priority:
    """Return how a task's other work takes turns with that of other teams: equal among equals."""
    return Priority(priority_key=_KEYS[level], fairness_key=str(tenant.team_id))


def turn_at_engine(
    tenant: Tenant,
    level: PriorityLevel,
    *,
    prompt_tokens: int,
    max_tokens: int,
    usual_output_tokens: int | None,
) -> Priority:
    """Return whose turn a model call takes, and how far it moves its team back.

    Args:
        tenant: Who pays.
        level: The task's priority.
        prompt_tokens: Length of its prompt.
        max_tokens: Longest answer.
        usual_output_tokens: What its team's last calls made on average, by the ledger.
    """
    usual = _UNKNOWN_OUTPUT_TOKENS if usual_output_tokens is None else usual_output_tokens
    tokens = max(1, prompt_tokens + min(usual, max_tokens))
    return Priority(
        priority_key=_KEYS[level],
        fairness_key=str(tenant.team_id),
        fairness_weight=min(max(_TOKENS / tokens, _LEAST), _MOST),
    )
