"""Starting in order, watching, restarting, ending: with real, small processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.local.errors import CannotRunHere, PartFailed
from deploy.local.part import Part, Say, Step
from deploy.local.processes import Launch, group_members
from deploy.local.report import Event
from deploy.local.supervisor import Supervisor


class Sleeper(Part):
    """Sleeps; ready once its process exists, ill while a file says so."""

    health_every_s = 0.05

    def __init__(self, name: str, folder: Path, needs: tuple[str, ...] = ()) -> None:
        self.name = name
        self.needs = needs
        self.argv: list[str] = ["/bin/sleep", "60"]
        self.ill = folder / f"{name}.ill"
        self.pids: list[int] = []

    def launch(self) -> Launch:
        return Launch(self.argv, dict(os.environ))

    def started(self, pid: int) -> None:
        self.pids.append(pid)

    async def problem(self) -> str | None:
        return self.ill.read_text() if self.ill.exists() else None


class Run:
    """A supervisor under test, run as a task."""

    def __init__(self, folder: Path, *items: Part | Step) -> None:
        self.events: list[Event] = []
        self.stop = asyncio.Event()
        self.up = asyncio.Event()
        self.supervisor = Supervisor(
            items,
            report=self.events.append,
            log_of=lambda name: folder / f"{name}.log",
            mark_env={"OVERLINE_HOME": str(folder)},
        )
        self.task = asyncio.create_task(self.supervisor.run(self.stop, self.up.set))

    async def ready(self) -> None:
        waits = [self.task, asyncio.create_task(self.up.wait())]
        await asyncio.wait(waits, timeout=20, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        assert self.up.is_set()

    async def end(self) -> None:
        self.stop.set()
        await asyncio.wait_for(self.task, 20)

    def states(self, part: str) -> list[str]:
        return [str(event.state) for event in self.events if event.part == part and event.state]


async def until(holds: Callable[[], bool], limit_s: float = 15.0) -> None:
    async with asyncio.timeout(limit_s):
        while not holds():
            await asyncio.sleep(0.02)


async def test_what_is_needed_comes_up_first_and_goes_down_last(tmp_path: Path) -> None:
    done: list[str] = []
    base = Sleeper("base", tmp_path)
    step = Step("step", ("base",), lambda say: done.append("step") or "done")  # type: ignore[func-returns-value]
    top = Sleeper("top", tmp_path, needs=("step",))
    run = Run(tmp_path, top, step, base)
    await run.ready()
    order = [event.part for event in run.events if event.state == "ready"]
    assert order == ["base", "step", "top"]
    await run.end()
    ended = [event.part for event in run.events if event.state == "stopped"]
    assert ended == ["top", "base"]
    assert done == ["step"]
    assert not any(group_members(pid) for part in (base, top) for pid in part.pids)


async def test_a_part_that_dies_is_started_again_and_said_so(tmp_path: Path) -> None:
    part = Sleeper("part", tmp_path)
    run = Run(tmp_path, part)
    await run.ready()
    os.kill(part.pids[0], signal.SIGKILL)
    await until(lambda: len(part.pids) == 2 and run.supervisor.parts["part"].state == "ready")
    said = [event.text for event in run.events if event.state == "restarting"]
    assert said == ["was killed by SIGKILL; starting it again in 0.2 s"]
    assert run.supervisor.parts["part"].restarts == 1
    await run.end()


async def test_a_part_that_lives_but_does_not_work_is_started_again(tmp_path: Path) -> None:
    part = Sleeper("part", tmp_path)
    run = Run(tmp_path, part)
    await run.ready()
    part.ill.write_text("answers nonsense")
    await until(lambda: "restarting" in run.states("part"))
    assert group_members(part.pids[0]) == [] or len(part.pids) == 1
    part.ill.unlink()
    await until(lambda: run.supervisor.parts["part"].state == "ready")
    assert len(part.pids) == 2
    assert "unwell" in run.states("part")
    await run.end()


async def test_one_failed_check_is_no_reason(tmp_path: Path) -> None:
    part = Sleeper("part", tmp_path)
    part.failures_allowed = 1000
    run = Run(tmp_path, part)
    await run.ready()
    part.ill.write_text("busy")
    await until(lambda: run.supervisor.parts["part"].state == "unwell")
    part.ill.unlink()
    await until(lambda: run.supervisor.parts["part"].state == "ready")
    assert len(part.pids) == 1
    await run.end()


async def test_what_never_comes_up_shows_its_log_and_leaves_nothing(tmp_path: Path) -> None:
    base = Sleeper("base", tmp_path)
    bad = Sleeper("bad", tmp_path, needs=("base",))
    bad.argv = [sys.executable, "-c", "raise SystemExit('no such table')"]
    bad.ill.write_text("not up")
    run = Run(tmp_path, base, bad)
    with pytest.raises(PartFailed, match="no such table") as failure:
        await run.ready()
    assert failure.value.part == "bad"
    assert len(bad.pids) == 2  # a first start may fail once
    assert not any(group_members(pid) for pid in base.pids + bad.pids)


async def test_a_start_has_a_time_limit(tmp_path: Path) -> None:
    part = Sleeper("part", tmp_path)
    part.start_limit_s = 0.2
    part.ill.write_text("still loading")
    run = Run(tmp_path, part)
    with pytest.raises(PartFailed, match="still loading"):
        await run.ready()
    assert not any(group_members(pid) for pid in part.pids)


async def test_a_program_that_does_not_exist_is_named(tmp_path: Path) -> None:
    part = Sleeper("part", tmp_path)
    part.argv = ["/no/such/program"]
    with pytest.raises(PartFailed, match="/no/such/program"):
        await Run(tmp_path, part).ready()


@pytest.mark.parametrize(
    "program",
    [
        '#!/bin/sh\necho "server: /lib/libc.so.6: version \\`GLIBC_2.38\' not found" >&2\nexit 1\n',
        "\x7fELF of another processor",
    ],
)
async def test_a_wheels_program_that_cannot_run_here_names_the_way_out(
    tmp_path: Path, program: str
) -> None:
    (tmp_path / "server").write_text(program)
    (tmp_path / "server").chmod(0o755)
    part = Sleeper("part", tmp_path)
    part.argv = [str(tmp_path / "server")]
    part.ill.write_text("not up")
    part.instead = ("The Temporal server", "OVERLINE_TEMPORAL_ADDRESS", "temporal.example.com:7233")
    with pytest.raises(CannotRunHere) as refusal:
        await Run(tmp_path, part).ready()
    assert "OVERLINE_TEMPORAL_ADDRESS=temporal.example.com:7233" in str(refusal.value)
    assert "GLIBC_2.38" in str(refusal.value) or "format error" in str(refusal.value)


async def test_a_step_that_breaks_ends_everything(tmp_path: Path) -> None:
    def act(say: Say) -> str:
        raise ValueError("the migration is wrong")

    base = Sleeper("base", tmp_path)
    run = Run(tmp_path, base, Step("step", ("base",), act))
    with pytest.raises(PartFailed, match="the migration is wrong"):
        await run.ready()
    assert not any(group_members(pid) for pid in base.pids)


async def test_stopping_does_not_wait_for_a_long_step(tmp_path: Path) -> None:
    going = asyncio.Event()
    loop = asyncio.get_running_loop()

    def act(say: Say) -> str:
        say("half way")
        loop.call_soon_threadsafe(going.set)
        import time

        time.sleep(30)
        return ""

    run = Run(tmp_path, Step("step", (), act))
    await going.wait()
    run.stop.set()
    async with asyncio.timeout(5):
        with suppress(asyncio.CancelledError):
            await run.task
    assert ("step", None, "half way") in [(e.part, e.state, e.text) for e in run.events]
