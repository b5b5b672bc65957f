"""Whose turn it is: by priority, then by team, each team moved back by what its calls cost."""

from __future__ import annotations

from uuid import UUID

from store.catalogue import Catalogue, Deployment
from workflows.contracts import Tenant
from workflows.queueing import model_queue, task_turn, turn_at_engine

TEAM = UUID(int=7)
TENANT = Tenant(organisation_id=UUID(int=1), team_id=TEAM, key_id=UUID(int=2))


def _weight(prompt: int, most: int, usual: int | None) -> float:
    turn = turn_at_engine(
        TENANT, "default", prompt_tokens=prompt, max_tokens=most, usual_output_tokens=usual
    )
    assert turn.fairness_key == str(TEAM)
    assert turn.fairness_weight is not None
    return turn.fairness_weight


def test_a_call_counts_by_its_prompt_and_by_what_its_team_usually_makes() -> None:
    assert _weight(900, 256, 100) == 1.0
    # Twice the tokens, half the turns.
    assert _weight(1900, 256, 100) == 0.5
    # It cannot make more than it may.
    assert _weight(90, 10, 5000) == 10.0
    # Unknown teams are taken for modest ones.
    assert _weight(36, 4096, None) == 10.0


def test_weights_stay_within_what_temporal_takes() -> None:
    assert _weight(0, 1, 0) == 1000.0
    assert _weight(10_000_000, 1, 1) == 0.001


def test_levels_come_in_their_order_and_a_tasks_other_work_shares_evenly() -> None:
    keys = [task_turn(TENANT, level).priority_key for level in ("interactive", "default", "batch")]
    assert keys == sorted(keys, key=lambda key: key or 0)
    assert len(set(keys)) == 3
    assert task_turn(TENANT, "batch").fairness_weight is None


def test_queues_of_classes_are_apart_from_all_other_work() -> None:
    assert model_queue("overline", "large") == "overline-model-large"


def test_a_class_has_the_slots_of_all_replicas_of_what_is_switched_on() -> None:
    def one(name: str, deployment_class: str, slots: int, *, enabled: bool = True) -> Deployment:
        urls = ("a:1", "b:1")
        return Deployment(name, "m", "scripted", urls, "m", enabled, deployment_class, slots)

    deployments = [
        one("a", "x", 8),
        one("b", "x", 1),
        one("c", "x", 64, enabled=False),
        # Calls may wait there still.
        one("d", "gone", 4, enabled=False),
        one("e", "", 4),
    ]
    catalogue = Catalogue({}, {each.id: each for each in deployments}, {}, {}, "")
    assert catalogue.class_slots() == {"x": 18, "gone": 8}
