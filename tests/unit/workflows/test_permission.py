"""What a task asks before it may begin, and does not ask again."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from workflows.contracts import Plan, Safety, TaskInput, Tenant
from workflows.permission import has_begun


def test_a_run_that_goes_on_has_nothing_to_ask_any_more() -> None:
    tenant = Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4())
    safety = Safety(version=3, scope=uuid4(), team=uuid4(), asks="asked", judges=True)
    asked: dict[str, Any] = {
        "task_id": uuid4(),
        "tenant": tenant,
        "prompt_digest": "",
        "prompt_chars": 0,
    }
    task = TaskInput(**asked, plan=Plan(safety=safety))
    went_on = has_begun(task).plan.safety
    assert went_on == safety.model_copy(update={"asks": None, "judges": False})
    plain = TaskInput(**asked, plan=Plan())
    assert has_begun(plain) is plain
