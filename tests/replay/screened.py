"""Recordings of tasks with a safety policy: what is taken out, held back, judged and blocked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from store import policies
from store.database import Database
from tests.integration.tasks.caller import ask, choose, say, words
from tests.integration.tasks.policies import PEOPLE

if TYPE_CHECKING:
    from tests.replay.record import Recorder

__all__ = ["screened", "screened_blocked", "screened_held", "screened_judged"]

MODEL = "scripted"
CALCULATE = choose({"tool": "calculator", "expression": "6*7"})
TOOLS = [{"name": "calculator", "must_call": True}]
SUMS = {"id": "sums", "kind": "deny_list", "patterns": [r"= \d+"], "on": ["tool_result"]}
BIRD = {"id": "bird", "kind": "deny_list", "words": ["Bluebird"]}


@asynccontextmanager
async def policy(recorder: Recorder, *rules: dict[str, Any]) -> AsyncIterator[None]:
    """Have the recorder's organisation keep to a policy for a while."""
    database = await Database.open(recorder.stack.admin_url, max_size=1)
    organisation = recorder.caller.organisation_id
    try:
        await policies.set_policy(
            database, organisation, {"rules": list(rules)}, team_id=None, actor="recorder"
        )
        yield
        await policies.unset_policy(database, organisation, team_id=None, actor="recorder")
    finally:
        await database.close()


async def decided(recorder: Recorder, task_id: str, number: int) -> None:
    """Approve what a task asks people about, once it has asked so often."""
    path = f"/v1/tasks/{task_id}/approvals"
    while len(asked := (await recorder.caller.request("GET", path)).json()["approvals"]) < number:
        await asyncio.sleep(0.05)
    (call_id,) = [each["call_id"] for each in asked if each["status"] == "waiting"]
    await recorder.caller.request("POST", f"{path}/{call_id}", json={"decision": "approve"})


async def screened(recorder: Recorder) -> str:
    """Redacted, with a sub-agent, and a tool whose answer is withheld."""
    body = {"name": "clerk", "model": MODEL, "system": "You write letters."}
    await recorder.caller.request("POST", "/v1/agents", json=body)
    async with policy(recorder, PEOPLE, SUMS | {"action": "block"}):
        question = "I am ada@example.com. " + ask("clerk", "Write to ada@example.com.")
        tools = [{"name": "agent.clerk", "must_call": True}, *TOOLS]
        said = CALCULATE + say("Dear ada@example.com.")
        return await recorder.ended("succeeded", question + said, tools=tools)


async def screened_blocked(recorder: Recorder) -> str:
    """An answer that is cut off."""
    async with policy(recorder, BIRD | {"on": ["output"], "action": "block"}):
        said = say(f"{words(20)} Bluebird {words(200)}", pace_ms=2)
        return await recorder.ended("failed", said, sampling={"max_tokens": 2000})


async def screened_held(recorder: Recorder) -> str:
    """A task, an answer of a tool and the answer itself, each of which waits for a person."""
    holds = {"action": "require_approval"}
    async with policy(recorder, SUMS | holds, BIRD | holds):
        task_id = await recorder.caller.submit(
            "Of Bluebird: " + CALCULATE + say("Bluebird is 42."), model=MODEL, tools=TOOLS
        )
        for number in (1, 2, 3):
            await decided(recorder, task_id, number)
        assert (await recorder.caller.ended(task_id))["status"] == "succeeded"
    return f"task-{task_id}"


async def screened_judged(recorder: Recorder) -> str:
    """Judged by a model before it begins."""
    judged = {"id": "judged", "kind": "moderation", "model": MODEL, "on": ["input"]}
    async with policy(recorder, judged | {"action": "block"}):
        verdict = f"[[call text={json.dumps(json.dumps({'flagged': False}))}]]"
        return await recorder.ended("succeeded", f"Fine? {verdict}" + say("Fine."))
