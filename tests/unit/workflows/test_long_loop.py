"""What the loop of a long task takes along into its next run stays small."""

from __future__ import annotations

from workflows.contracts import LoopState, Plan, ToolCall, ToolUse
from workflows.loop import ASKED_REMEMBERED, SHOWN_LINES, Loop

CALLS = 5_000
MOST_BYTES = 20_000


def test_the_state_between_runs_does_not_grow_with_the_task() -> None:
    plan = Plan(tools=(ToolUse(name="calculator", max_calls=CALLS),))
    loop = Loop(plan, LoopState(digest="d", chars=1))
    for number in range(CALLS):
        loop.step += 1
        wanted = ToolCall(name="calculator", arguments={"expression": f"{number}+1"})
        assert loop.wants([wanted]) == [(1, wanted)]
        loop.heard("calculator", digest="d", chars=1, ok=True)
    state = loop.state(paused=False, steering=0, started_at=0.0)
    assert len(state.asked) == ASKED_REMEMBERED
    assert len(state.lines) == SHOWN_LINES
    assert len(state.model_dump_json()) < MOST_BYTES
    # The next run knows what was asked just now, and that there is nothing left to call.
    again = Loop(plan, state)
    assert again.wants([ToolCall(name="calculator", arguments={"expression": "4999+1"})]) == []
    assert again.next_turn().purpose == "answer"
