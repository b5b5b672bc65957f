"""The state a fork starts from is the one the loop had itself."""

from __future__ import annotations

from decimal import Decimal
from uuid import uuid4

import pytest

from workflows.contracts import (
    LoopState,
    Plan,
    TaskInput,
    Tenant,
    ToolCall,
    ToolUse,
    Usage,
)
from workflows.inheritance import CannotInherit, PastStep, inherit
from workflows.loop import Loop
from workflows.transcript import digest_of, start

TENANT = Tenant(organisation_id=uuid4(), team_id=uuid4(), key_id=uuid4())


def _task(*tools: ToolUse) -> TaskInput:
    digest, chars = start("be brief", ())
    return TaskInput(
        task_id=uuid4(),
        tenant=TENANT,
        plan=Plan(tools=tools),
        prompt_digest=digest,
        prompt_chars=chars,
    )


def _sum(expression: str) -> ToolCall:
    return ToolCall(name="calculator", arguments={"expression": expression})


def _played(task: TaskInput, steps: list[PastStep]) -> Loop:
    """The loop, told of the steps the way the workflow tells it, with their price."""
    loop = Loop(task.plan, LoopState(digest=task.prompt_digest, chars=task.prompt_chars))
    for step in steps:
        loop.step += 1
        loop.spoke(
            digest=digest_of(step.text),
            chars=len(step.text),
            model=step.model,
            cached=False,
            billed_usd=Decimal("0.01"),
            usage=Usage(prompt_tokens=7, completion_tokens=3),
        )
        wanted = loop.wants(step.tool_call)
        if wanted is not None and step.tool_result is not None:
            loop.heard(
                wanted.name,
                digest=digest_of(step.tool_result),
                chars=len(step.tool_result),
                ok=True,
            )
    return loop


STEPS = [
    PastStep(text="choose 1", model="m", tool_call=_sum("1+1"), tool_result="1+1 = 2"),
    PastStep(text="choose 2", model="n", tool_call=_sum("2+2"), tool_result="2+2 = 4"),
    PastStep(text="choose 2 again", model="n", tool_call=_sum("2+2")),
]


@pytest.mark.parametrize("count", range(4))
def test_it_is_the_loops_own_state_without_its_price(count: int) -> None:
    task = _task(ToolUse(name="calculator"))
    state, turn = inherit(task, STEPS[:count])
    played = _played(task, STEPS[:count])
    own = played.state(paused=False, started_at=None)
    bare = {"cost_usd": Decimal(0), "tokens": 0, "lines": state.lines}
    assert state == own.model_copy(update=bare)
    assert turn == played.next_turn()
    # Asking the same again was taken for the choice to answer.
    assert turn.purpose == ("answer" if count == 3 else "tool_call")


def test_a_call_read_from_its_row_is_known_whatever_the_order_of_its_arguments() -> None:
    task = _task(ToolUse(name="calculator", max_calls=9))
    orders = [{"to": "a", "body": "b"}, {"body": "b", "to": "a"}]
    calls = [ToolCall(name="calculator", arguments=dict(order)) for order in orders]
    told = [PastStep(text="t", model="m", tool_call=call, tool_result="r") for call in calls]
    assert inherit(task, told[:1])[0].asked == inherit(task, told[1:])[0].asked
    assert inherit(task, told)[1].purpose == "answer"


def test_another_result_of_a_tool_is_another_conversation() -> None:
    task = _task(ToolUse(name="calculator"))
    told = [PastStep(text="t", model="m", tool_call=_sum("1+1"), tool_result=r) for r in "23"]
    two, three = (inherit(task, [step])[0] for step in told)
    assert two.digest != three.digest
    assert (two.step, two.calls, two.asked) == (three.step, three.calls, three.asked)


def test_nothing_follows_the_answer() -> None:
    with pytest.raises(CannotInherit) as refused:
        inherit(_task(), [PastStep(text="hello", model="m")])
    assert (refused.value.step, refused.value.why) == (1, "answered")


def test_a_tool_that_has_not_answered_is_told_apart() -> None:
    step = PastStep(text="choose", model="m", tool_call=_sum("1+1"))
    with pytest.raises(CannotInherit) as refused:
        inherit(_task(ToolUse(name="calculator")), [step])
    assert (refused.value.step, refused.value.why) == (1, "tool_unanswered")
