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
from workflows.inheritance import CannotInherit, PastCall, PastMessage, PastStep, inherit
from workflows.loop import Loop
from workflows.transcript import digest_of, extend, said, start

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
        for place, call in loop.wants([past.call for past in step.calls]):
            past = step.calls[place - 1]
            assert past.result is not None
            loop.heard(
                call.name,
                digest=digest_of(past.result),
                chars=len(past.result),
                ok=True,
                place=past.place,
            )
    return loop


def _step(text: str, model: str, call: ToolCall, result: str | None = None) -> PastStep:
    return PastStep(text=text, model=model, calls=(PastCall(call, result),))


STEPS = [
    _step("choose 1", "m", _sum("1+1"), "1+1 = 2"),
    _step("choose 2", "n", _sum("2+2"), "2+2 = 4"),
    _step("choose 2 again", "n", _sum("2+2")),
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
    told = [_step("t", "m", call, "r") for call in calls]
    assert inherit(task, told[:1])[0].asked == inherit(task, told[1:])[0].asked
    assert inherit(task, told)[1].purpose == "answer"


def test_another_result_of_a_tool_is_another_conversation() -> None:
    task = _task(ToolUse(name="calculator"))
    told = [_step("t", "m", _sum("1+1"), r) for r in "23"]
    two, three = (inherit(task, [step])[0] for step in told)
    assert two.digest != three.digest
    assert (two.step, two.calls, two.asked) == (three.step, three.calls, three.asked)


def test_nothing_follows_the_answer() -> None:
    with pytest.raises(CannotInherit) as refused:
        inherit(_task(), [PastStep(text="hello", model="m")])
    assert (refused.value.step, refused.value.why) == (1, "answered")


def test_a_tool_that_has_not_answered_is_told_apart() -> None:
    step = _step("choose", "m", _sum("1+1"))
    with pytest.raises(CannotInherit) as refused:
        inherit(_task(ToolUse(name="calculator")), [step])
    assert (refused.value.step, refused.value.why) == (1, "tool_unanswered")


def _several(*results: str | None) -> PastStep:
    """A step that chose a call for each result, and one of them once more."""
    calls = [_sum(f"{n}+{n}") for n in range(1, len(results) + 1)]
    past = [
        PastCall(call, r, place=n + 1)
        for n, (call, r) in enumerate(zip(calls, results, strict=True))
    ]
    return PastStep(
        text="several", model="m", calls=(*past, PastCall(calls[0], None, len(past) + 1))
    )


def _parallel(*tools: ToolUse) -> TaskInput:
    task = _task(*tools)
    plan = task.plan.model_copy(update={"parallel_tool_calls": 4})
    return task.model_copy(update={"plan": plan})


def test_a_step_of_several_calls_is_inherited_as_the_loop_heard_it() -> None:
    task = _parallel(ToolUse(name="calculator", max_calls=4))
    steps = [_several("2", "4", "6")]
    state, turn = inherit(task, steps)
    own = _played(task, steps)
    assert (state.digest, state.calls, state.asked) == (
        own.digest,
        {"calculator": 3},
        own.state(paused=False, started_at=None).asked,
    )
    # One call is left, so there is nothing to choose several of.
    assert turn.parallel == own.next_turn().parallel == 1
    other, _ = inherit(task, [_several("2", "4", "7")])
    assert other.digest != state.digest


def test_a_step_with_one_of_several_calls_unanswered_cannot_be_followed() -> None:
    task = _parallel(ToolUse(name="calculator", max_calls=9))
    with pytest.raises(CannotInherit, match="tool_unanswered"):
        inherit(task, [_several("2", None, "6")])


def test_what_was_said_to_a_task_is_inherited_as_the_loop_was_told_it() -> None:
    task = _task(ToolUse(name="calculator"))
    answer = PastStep(text="four", model="m", kept=True)
    played = _played(task, STEPS[:1])
    told = PastMessage(number=1, content="and now?", at_step=2)
    for message in (told, PastMessage(number=2, content="well?", at_step=2)):
        played.told(
            number=message.number,
            digest=extend(played.digest, said("user", message.content)),
            chars=len(message.content),
        )
    again = PastMessage(number=2, content="well?", at_step=2)
    state, turn = inherit(task, STEPS[:1], [told, again])
    own = played.state(paused=False, started_at=None)
    bare = {"cost_usd": Decimal(0), "tokens": 0, "lines": state.lines}
    assert state == own.model_copy(update=bare)
    assert (state.messages, state.told, state.asked) == (2, 2, ())
    assert turn == played.next_turn()
    # An answer that was kept is one of the conversation, and is told from a choice to answer.
    plain = _task()
    kept, turn = inherit(plain, [answer], [PastMessage(number=1, content="more", at_step=2)])
    assert turn.purpose == "answer"
    other = extend(extend(plain.prompt_digest, digest_of("four")), said("user", "more"))
    assert kept.digest != other


def test_a_message_undoes_the_choice_to_answer_and_what_was_rejected() -> None:
    task = _task(ToolUse(name="calculator", max_calls=9))
    chosen = [*STEPS[:2], PastStep(text="enough", model="m")]
    assert inherit(task, chosen)[1].purpose == "answer"
    told = [PastMessage(number=1, content="once more", at_step=4)]
    state, turn = inherit(task, chosen, told)
    assert (turn.purpose, state.asked) == ("tool_call", ())
    rejected = [*chosen, PastStep(text="no", model="m", rejected="it is not JSON")]
    assert len(inherit(task, rejected)[1].rejected) == 1
    told = [PastMessage(number=1, content="once more", at_step=5)]
    assert inherit(task, rejected, told)[0].rejected == ()
