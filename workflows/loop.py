"""How far a task's loop is, and what its next turn is for. Pure: no Temporal, no I/O."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from decimal import Decimal

from workflows.child_contracts import is_sub_agent
from workflows.contracts import LoopState, Plan, Rejected, ToolCall, ToolName, ToolUse, Turn, Usage
from workflows.transcript import KEPT, digest_of, extend

__all__ = ["Loop"]

# What people see of a long task is its end.
SHOWN_LINES = 50
# A model that goes round in circles goes round in small ones; the state of a long task must not
# grow with every call it made.
ASKED_REMEMBERED = 256


class Loop:
    """The counters of a loop; `state` is what they are at a moment."""

    def __init__(self, plan: Plan, state: LoopState) -> None:
        self._plan = plan
        self.step = state.step
        self.digest = state.digest
        self.chars = state.chars
        self.cost_usd = state.cost_usd
        self.tokens = state.tokens
        self.model = state.model
        self._calls: dict[ToolName, int] = dict(state.calls)
        self._asked = deque(state.asked, maxlen=ASKED_REMEMBERED)
        self._chose_to_answer = state.chose_to_answer
        self.untrusted = state.untrusted or plan.untrusted
        self._rejected = state.rejected
        self._lines = deque(state.lines, maxlen=SHOWN_LINES)
        self.messages = state.messages

    def state(
        self, *, paused: bool, started_at: float | None, steering: int = 0, told: int = 0
    ) -> LoopState:
        """Return what a next run of the workflow needs to go on."""
        return LoopState(
            step=self.step,
            digest=self.digest,
            chars=self.chars,
            calls=self._calls,
            asked=tuple(self._asked),
            chose_to_answer=self._chose_to_answer,
            untrusted=self.untrusted,
            rejected=self._rejected,
            cost_usd=self.cost_usd,
            tokens=self.tokens,
            model=self.model,
            lines=tuple(self._lines),
            messages=self.messages,
            told=max(told, self.messages),
            paused=paused,
            steering=steering,
            started_at=started_at,
        )

    @property
    def text(self) -> str:
        """The last turns, a line each, for people."""
        return "\n".join(self._lines)

    def next_turn(self) -> Turn:
        """Choose what the next call is for: a tool choice among those left, or the answer."""
        left = [tool for tool in self._plan.tools if self._calls.get(tool.name, 0) < tool.max_calls]
        owed = [tool for tool in left if tool.must_call and not self._calls.get(tool.name)]
        if owed:
            return self._choice(owed, may_answer=False)
        # When every tool is owed once, calling them was all there was to choose.
        free = [tool for tool in left if not tool.must_call]
        if self._chose_to_answer or not free:
            return Turn(purpose="answer", rejected=self._rejected)
        return self._choice(free, may_answer=True)

    def _choice(self, tools: Sequence[ToolUse], *, may_answer: bool) -> Turn:
        calls_left = sum(tool.max_calls - self._calls.get(tool.name, 0) for tool in tools)
        return Turn(
            purpose="tool_call",
            tools=tuple(tool.name for tool in tools),
            may_answer=may_answer,
            definitions={tool.name: tool.definition for tool in tools if tool.definition},
            parallel=min(self._plan.parallel_tool_calls, calls_left),
        )

    def spoke(
        self,
        *,
        digest: str,
        chars: int,
        model: str,
        cached: bool,
        billed_usd: Decimal,
        usage: Usage,
    ) -> None:
        """Take note of what a model call gave and cost."""
        self.digest = extend(self.digest, digest)
        self.chars += chars
        self.cost_usd += billed_usd
        self.tokens += usage.prompt_tokens + usage.completion_tokens
        self.model = model
        made = (
            "from the cache"
            if cached
            else f"{usage.prompt_tokens} + {usage.completion_tokens} tokens"
        )
        self._lines.append(f"{self.step}. `{model}` {made}, ${billed_usd:f}")

    def spent_below(self, *, tokens: int, cost_usd: Decimal) -> None:
        """Take note of what a sub-agent and all below it took: it counts as the task's own."""
        self.tokens += tokens
        self.cost_usd += cost_usd

    def wants(self, calls: Sequence[ToolCall]) -> list[tuple[int, ToolCall]]:
        """Return the tool calls to make, each with its place among those chosen, from 1.

        Empty when the model chose to answer instead. Asking the same again can bring nothing new: a
        model that only does that goes round in circles, and is taken for one that has all it
        needs. Of a tool that has been called as often as it may be, no further call is made.
        """
        wanted: list[tuple[int, ToolCall]] = []
        most = {tool.name: tool.max_calls for tool in self._plan.tools}
        for place, call in enumerate(calls, start=1):
            # Sorted: a fork reads the call from its row, which does not keep the order.
            asked = digest_of(json.dumps(call.model_dump(mode="json"), sort_keys=True))[:16]
            made = self._calls.get(call.name, 0) + sum(call.name == one.name for _, one in wanted)
            if asked in self._asked or made >= most.get(call.name, made + 1):
                continue
            self._asked.append(asked)
            wanted.append((place, call))
        if not wanted:
            self._chose_to_answer = True
        return wanted

    def rejected(self, problem: str) -> None:
        """Take note that the step's answer does not obey the task's schema: it is asked anew."""
        # The agent has chosen to answer, also when it had tools left.
        self._chose_to_answer = True
        self._rejected = (*self._rejected, Rejected(step=self.step, problem=problem))
        self._lines.append(f"{self.step}. the answer is not as it must be")

    def kept(self) -> None:
        """Take note that the answer did not end the task: something was said to it meanwhile."""
        self.digest = extend(self.digest, KEPT)
        # It may rest on passages, and what follows reads it.
        self.untrusted = self.untrusted or bool(self._plan.collections)

    def told(self, *, number: int, digest: str, chars: int) -> None:
        """Take note of what was said to the task.

        What was found out for another question need not be what this one takes: the agent chooses
        anew, and may ask a tool the same again.

        Args:
            number: Of the newest message.
            digest: Of the conversation with what was said.
            chars: Length of what was said.
        """
        self.messages = number
        self.digest = digest
        self.chars += chars
        self._asked.clear()
        self._chose_to_answer = False
        self._rejected = ()
        self._lines.append(f"{self.step}. message {number} came")

    def heard(
        self,
        name: ToolName,
        *,
        digest: str,
        chars: int,
        ok: bool,
        place: int | None = None,
        untrusted: bool = False,
        withheld: str | None = None,
    ) -> None:
        """Take note of what a tool answered.

        Args:
            name: The tool.
            digest: Of its answer.
            chars: Length of that.
            ok: Whether it went well.
            place: Which of the calls chosen, if there may be several: the next prompt tells which
                were made, so the conversation's digest must.
            untrusted: Whether it may have words from outside in it; a sub-agent's always may.
            withheld: The rule of the task's policy that keeps the answer from the model.
        """
        self.untrusted = self.untrusted or untrusted or is_sub_agent(name)
        self._calls[name] = self._calls.get(name, 0) + 1
        self.digest = extend(self.digest, digest if place is None else f"{place}:{digest}")
        self.chars += chars
        what = "answered" if ok else "failed"
        if withheld is not None:
            what = f"answered, and rule `{withheld}` blocked it"
        self._lines.append(f"{self.step}. tool `{name}` {what}")
