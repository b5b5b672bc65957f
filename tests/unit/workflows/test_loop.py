"""What the loop asks next, how it counts, and that a next run goes on where the last one ended."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

import pytest

from workflows.contracts import (
    LoopState,
    Output,
    Plan,
    TaskInput,
    Tenant,
    ToolCall,
    ToolUse,
    Turn,
    Usage,
)
from workflows.inheritance import CannotInherit, PastStep, inherit
from workflows.loop import Loop
from workflows.transcript import digest_of

CALCULATE = ToolCall(name="calculator", arguments={"expression": "1+1"})
START = LoopState(digest="d", chars=10)


def _loop(*tools: ToolUse) -> Loop:
    return Loop(Plan(tools=tools), START)


def _spoke(loop: Loop, **changes: object) -> None:
    loop.step += 1
    said: dict[str, object] = {
        "digest": "x",
        "chars": 5,
        "model": "m",
        "cached": False,
        "billed_usd": Decimal("0.000001"),
        "usage": Usage(prompt_tokens=7, completion_tokens=3),
    }
    loop.spoke(**(said | changes))  # type: ignore[arg-type]


def test_without_tools_the_first_turn_is_the_answer() -> None:
    assert _loop().next_turn() == Turn(purpose="answer")


def test_a_tool_that_must_be_called_comes_first_and_leaves_no_way_out() -> None:
    loop = _loop(ToolUse(name="search"), ToolUse(name="calculator", must_call=True))
    turn = loop.next_turn()
    assert (turn.tools, turn.may_answer) == (("calculator",), False)
    loop.heard("calculator", digest="r", chars=1, ok=True)
    turn = loop.next_turn()
    assert (turn.tools, turn.may_answer) == (("search",), True)


def test_a_tool_is_offered_as_often_as_it_may_be_called() -> None:
    loop = _loop(ToolUse(name="calculator", max_calls=2))
    for _ in range(2):
        assert loop.next_turn().purpose == "tool_call"
        loop.heard("calculator", digest="r", chars=1, ok=True)
    assert loop.next_turn().purpose == "answer"


def test_when_every_tool_was_owed_there_is_no_choice_after_them() -> None:
    loop = _loop(ToolUse(name="calculator", must_call=True))
    loop.heard("calculator", digest="r", chars=1, ok=True)
    assert loop.next_turn().purpose == "answer"


@pytest.mark.parametrize("asked_before", [False, True])
def test_no_call_or_the_same_again_is_the_choice_to_answer(asked_before: bool) -> None:
    loop = _loop(ToolUse(name="calculator", max_calls=9))
    if asked_before:
        assert loop.wants([CALCULATE]) == [(1, CALCULATE)]
    assert loop.wants([CALCULATE] if asked_before else []) == []
    assert loop.next_turn().purpose == "answer"


def test_tokens_and_money_add_up_and_the_digest_goes_on() -> None:
    loop = _loop()
    _spoke(loop)
    first = loop.digest
    _spoke(loop, cached=True, billed_usd=Decimal(0), usage=Usage())
    assert (loop.tokens, loop.cost_usd, loop.chars) == (10, Decimal("0.000001"), 20)
    assert len({"d", first, loop.digest}) == 3
    assert loop.text.splitlines() == [
        "1. `m` 7 + 3 tokens, $0.000001",
        "2. `m` from the cache, $0",
    ]


def test_an_answer_that_was_not_as_it_must_be_is_asked_for_again() -> None:
    loop = _loop(ToolUse(name="calculator", max_calls=9))
    for number in (1, 2):
        _spoke(loop)
        loop.rejected(f"problem {number}")
    turn = loop.next_turn()
    assert turn.purpose == "answer"
    assert [(each.step, each.problem) for each in turn.rejected] == [
        (1, "problem 1"),
        (2, "problem 2"),
    ]


def test_a_next_run_goes_on_with_everything_the_last_one_knew() -> None:
    plan = Plan(tools=(ToolUse(name="calculator", max_calls=2), ToolUse(name="search")))
    loop = Loop(plan, START)
    _spoke(loop)
    assert loop.wants([CALCULATE]) == [(1, CALCULATE)]
    loop.heard("calculator", digest="r", chars=4, ok=False)
    for problem in ("one", "two"):
        _spoke(loop)
        loop.rejected(problem)
    state = loop.state(paused=True, started_at=12.5)
    # As it travels: in JSON.
    read = LoopState.model_validate_json(state.model_dump_json())
    again = Loop(plan, read)
    assert again.state(paused=True, started_at=12.5) == state
    assert again.next_turn() == loop.next_turn()
    assert again.wants([CALCULATE]) == []
    assert (read.paused, read.started_at) == (True, 12.5)


def test_a_fork_goes_on_after_an_answer_that_did_not_obey() -> None:
    task = TaskInput(
        task_id=UUID(int=1),
        tenant=Tenant(organisation_id=UUID(int=2), team_id=UUID(int=3), key_id=UUID(int=4)),
        plan=Plan(output=Output(digest="s")),
        prompt_digest="d",
        prompt_chars=10,
    )
    own = Loop(task.plan, START)
    _spoke(own, digest=digest_of("no"), chars=2)
    own.rejected("it is not JSON")
    state, turn = inherit(task, [PastStep(text="no", model="m", rejected="it is not JSON")])
    assert (state.digest, state.chars, state.rejected) == (own.digest, own.chars, turn.rejected)
    assert turn == own.next_turn()
    with pytest.raises(CannotInherit, match="answered"):
        inherit(task, [PastStep(text="{}", model="m")])


def test_what_is_shown_of_a_long_task_does_not_grow() -> None:
    loop = _loop()
    for _ in range(200):
        _spoke(loop)
    assert len(loop.text.splitlines()) == 50
    assert loop.text.startswith("151. ")
    assert len(loop.state(paused=False, started_at=0).lines) == 50


def _sum(number: int) -> ToolCall:
    return ToolCall(name="calculator", arguments={"expression": f"{number}+1"})


def _parallel(most: int, *tools: ToolUse) -> Loop:
    return Loop(Plan(tools=tools, parallel_tool_calls=most), START)


def test_as_many_calls_are_chosen_as_there_may_be_and_as_are_left() -> None:
    loop = _parallel(4, ToolUse(name="calculator", max_calls=5), ToolUse(name="search"))
    assert loop.next_turn().parallel == 4
    for number in range(5):
        loop.heard("calculator", digest="r", chars=1, ok=True, place=number + 1)
    assert (loop.next_turn().tools, loop.next_turn().parallel) == (("search",), 3)
    assert _loop(ToolUse(name="calculator")).next_turn().parallel == 1


def test_of_several_calls_those_are_made_that_are_new_and_may_be() -> None:
    loop = _parallel(4, ToolUse(name="calculator", max_calls=3), ToolUse(name="search"))
    assert loop.wants([_sum(0)]) == [(1, _sum(0))]
    loop.heard("calculator", digest="r", chars=1, ok=True, place=1)
    look = ToolCall(name="search", arguments={"query": "x"})
    # The second is asked before, the fourth is the third again, the last one too many.
    chosen = [_sum(1), _sum(0), _sum(2), _sum(2), look, _sum(3)]
    assert loop.wants(chosen) == [(1, _sum(1)), (3, _sum(2)), (5, look)]
    for place, name in ((1, "calculator"), (3, "calculator"), (5, "search")):
        loop.heard(name, digest="r", chars=1, ok=True, place=place)
    assert loop.next_turn().tools == ("search",)
    # What was too many was not asked: but it cannot be asked for any more either.
    assert loop.wants([look, look]) == []
    assert loop.next_turn().purpose == "answer"


def test_which_of_several_calls_were_made_is_part_of_the_conversation() -> None:
    digests = set()
    for places in ((1, 2), (1, 3), (2, 3)):
        loop = _parallel(3, ToolUse(name="calculator", max_calls=9))
        for place in places:
            loop.heard("calculator", digest="r", chars=1, ok=True, place=place)
        digests.add(loop.digest)
    assert len(digests) == 3


def test_words_from_outside_stay_in_the_conversation_whatever_follows() -> None:
    loop = _loop(ToolUse(name="calculator"), ToolUse(name="search"))
    loop.heard("calculator", digest="r", chars=1, ok=True)
    assert not loop.untrusted
    loop.heard("search", digest="r", chars=1, ok=True, untrusted=True)
    loop.heard("calculator", digest="r", chars=1, ok=True)
    again = Loop(Plan(), loop.state(paused=False, started_at=None))
    assert loop.untrusted
    assert again.untrusted
    assert Loop(Plan(untrusted=True), START).untrusted
    child = _loop(ToolUse(name="agent.helper"))
    child.heard("agent.helper", digest="r", chars=1, ok=True)
    assert child.untrusted
