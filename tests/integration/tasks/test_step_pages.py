"""A task's steps in pages: all of them, once."""

from __future__ import annotations

import pytest

from tests.integration.tasks.caller import Caller, Refused, choose, say


async def test_pages_of_steps_are_complete_and_do_not_overlap(caller: Caller) -> None:
    question = "".join(
        choose({"tool": "calculator", "expression": f"{number}+1"}) for number in (1, 2)
    )
    task = await caller.answered(
        question + say("Done."),
        model="scripted",
        cache="off",
        tools=[{"name": "calculator", "max_calls": 2, "must_call": True}],
    )
    whole = await caller.steps(task["id"])
    assert len(whole) > 1
    path, read, cursor = f"/v1/tasks/{task['id']}/steps", [], 0
    while cursor is not None:
        page = (await caller.request("GET", path, params={"limit": 1, "cursor": cursor})).json()
        assert len(page["steps"]) == 1
        read += page["steps"]
        cursor = page["next_cursor"]
    assert read == whole
    beyond = await caller.request("GET", path, params={"cursor": 100})
    assert beyond.json()["steps"] == []
    with pytest.raises(Refused) as refused:
        await caller.request("GET", path, params={"limit": 0})
    assert refused.value.status == 422
