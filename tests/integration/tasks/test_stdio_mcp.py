"""An MCP server that workers start: it is asked, dies in the middle, is told its secrets only."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.chaos.victims import kill, pids_of
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, Refused
from tests.integration.tasks.test_tools import begin, register, use


async def _registered(caller: Caller, *operations: str, **fields: Any) -> None:
    tools = await register(
        caller, name="letters", kind="mcp", server="letters", operations=list(operations), **fields
    )
    assert [tool["name"] for tool in tools] == [f"letters.{name}" for name in operations]


async def _until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


async def _pid(note: Path) -> int:
    """Wait until a server says that it works on a mark; return its process."""
    await _until(lambda: bool(_said(note)), "no server began")
    return int(_said(note))


def _said(note: Path) -> str:
    return note.read_text() if note.exists() else ""


def _gone(pid: int) -> bool:
    """Whether a process has ended; what is left of one that nobody asked after has no words."""
    try:
        return not Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return True


async def test_a_started_server_is_asked_and_its_words_are_in_no_log(
    caller: Caller, stack: RunningStack
) -> None:
    await _registered(caller, "shout")
    called, _ = await use(caller, "letters.shout", {"text": "canary 4711 quiet"})
    assert (called["ok"], called["result"]) == (True, "CANARY 4711 QUIET")
    for log in stack.folder.glob("logs/*"):
        assert "canary 4711" not in log.read_text(errors="replace").lower()


async def test_a_server_that_dies_in_the_middle_is_started_again(
    caller: Caller, short_folder: Path
) -> None:
    await _registered(caller, "ponder")
    mark = f"mark-{uuid4().hex}"
    task_id = await begin(caller, "letters.ponder", {"mark": mark}, max_attempts=3)
    pid = await _pid(short_folder / mark)
    os.kill(pid, signal.SIGKILL)
    assert (await caller.ended(task_id))["status"] == "succeeded"
    called = (await caller.steps(task_id))[0]["tool_calls"][-1]
    assert (called["ok"], called["result"], called["attempt"]) == (True, "pondered", 2)


async def test_a_server_ends_with_its_worker_and_with_its_call(
    caller: Caller, stack: RunningStack, short_folder: Path
) -> None:
    await _registered(caller, "ponder")
    marks = [f"mark-{uuid4().hex}" for _ in range(2)]
    dies = await begin(caller, "letters.ponder", {"mark": marks[0]})
    pid = await _pid(short_folder / marks[0])
    kill(await pids_of("worker", stack, dies))
    await _until(lambda: _gone(pid), "the server outlives its call")
    assert (await caller.ended(dies))["status"] == "succeeded"
    cancelled = await begin(caller, "letters.ponder", {"mark": marks[1]})
    pid = await _pid(short_folder / marks[1])
    await caller.cancel(cancelled)
    assert (await caller.ended(cancelled))["status"] == "cancelled"
    await _until(lambda: _gone(pid), "the server outlives its call")


async def test_a_started_server_has_the_secrets_it_may_have_by_their_own_names(
    caller: Caller, short_folder: Path
) -> None:
    canary = f"canary-{uuid4().hex}"
    file = short_folder / "tool-secrets.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    mine = {"hosts": ["server:letters"], "organisations": [str(caller.organisation_id)]}
    file.write_text(json.dumps(kept | {"LETTERS_KEY": {"value": canary, **mine}}))
    # A header's name is the tenant's, and is no name of a variable.
    auth = [{"header": "LD-PRELOAD", "secret": "LETTERS_KEY", "prefix": "x"}]
    await _registered(caller, "given", auth=auth)
    called, _ = await use(caller, "letters.given", {})
    *names, secret = called["result"].split()
    assert secret == "[secret]"
    assert "LETTERS_KEY" in names
    assert not [name for name in names if name.startswith(("LD", "OVERLINE_"))]
    other = [{"header": "X", "secret": "NOT_THERE", "prefix": ""}]
    with pytest.raises(Refused) as refused:
        await _registered(caller, "given", auth=other)
    assert refused.value.problem["code"] == "OVL-1009"
