"""Starts parts in order, watches them, restarts those that die, ends them all.

It knows nothing of what the parts are: that is `deploy.local.stack`.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.local.background import in_thread
from deploy.local.endings import cannot_run, how_ended, unfit
from deploy.local.errors import PartFailed, StackError
from deploy.local.guardian import Guardian
from deploy.local.part import Part, PartStatus, Step
from deploy.local.processes import Identity, Launch, end_group, mark_of, spawn
from deploy.local.report import Event, Report, State

__all__ = ["Supervisor"]

_POLL_S = 0.1
_STABLE_S = 60.0  # a part that ran this long starts again with the shortest delay
_DELAYS_S = (0.2, 1.0, 2.0, 4.0, 8.0, 15.0)
_FIRST_TRIES = 2
_UNWELL_PATIENCE_S = 2.0


class Supervisor:
    """Runs a set of parts and steps until told to stop."""

    def __init__(
        self,
        items: Sequence[Part | Step],
        *,
        report: Report,
        log_of: Callable[[str], Path],
        mark_env: dict[str, str],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """Take what to run.

        Args:
            items: Parts and steps; each names what it needs.
            report: Hears every event.
            log_of: Log file of a part, by name.
            mark_env: Variables every process gets, by which it is known as this stack's.
            changed: Called when a status changed.
        """
        self._items = {item.name: item for item in items}
        self._report = report
        self._log_of = log_of
        self._mark_env = mark_env
        self._changed = changed
        self._done = {name: asyncio.Event() for name in self._items}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._guardian = Guardian()
        self.status = {name: PartStatus() for name in self._items}

    async def run(self, stop: asyncio.Event, ready: Callable[[], None]) -> None:
        """Start everything, call ``ready`` once it is up, and keep it up until ``stop`` is set.

        Raises:
            StackError: Something did not come up; what had started was ended again.
        """
        tasks = [asyncio.create_task(self._carry(item)) for item in self._items.values()]
        stopping = asyncio.create_task(stop.wait())
        up = asyncio.create_task(self._all_up())
        try:
            waiting: set[asyncio.Task[object]] = {*tasks, stopping, up}
            while not stopping.done():
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
                if up in done and not stopping.done():
                    ready()
        finally:
            for task in (*tasks, stopping, up):
                task.cancel()
            await asyncio.gather(*tasks, stopping, up, return_exceptions=True)
            await self._end_all()

    @property
    def parts(self) -> dict[str, PartStatus]:
        """How the parts are doing, steps left out."""
        return {
            name: status
            for name, status in self.status.items()
            if isinstance(self._items[name], Part)
        }

    async def _all_up(self) -> None:
        for event in self._done.values():
            await event.wait()

    async def _carry(self, item: Part | Step) -> None:
        for need in item.needs:
            if need in self._done:
                await self._done[need].wait()
        if isinstance(item, Step):
            await self._act(item)
        else:
            await self._keep(item)

    async def _act(self, step: Step) -> None:
        self._set(step.name, "starting")
        say = self._say(step.name)
        try:
            said = await asyncio.wait_for(in_thread(lambda: step.act(say)), step.limit_s)
        except TimeoutError as error:
            raise PartFailed(step.name, f"not done within {step.limit_s:.0f} s") from error
        except StackError:
            self._set(step.name, "failed")
            raise
        except Exception as error:
            self._set(step.name, "failed")
            raise PartFailed(step.name, f"{type(error).__name__}: {error}") from error
        self._set(step.name, "ready", said)
        self._done[step.name].set()

    async def _keep(self, part: Part) -> None:
        deaths, first = 0, True
        while True:
            began = time.monotonic()
            try:
                process = await self._start(part)
            except PartFailed as error:
                if first and deaths + 1 >= _FIRST_TRIES:
                    self._set(part.name, "failed")
                    raise
                reason = str(error).splitlines()[0].removeprefix(f"{part.name}: ")
            else:
                first = False
                self._done[part.name].set()
                reason = await self._watch(part, process)
            deaths = 1 if time.monotonic() - began > _STABLE_S else deaths + 1
            delay = _DELAYS_S[min(deaths, len(_DELAYS_S)) - 1]
            self.status[part.name].restarts += 1
            self._set(part.name, "restarting", f"{reason}; starting it again in {delay:g} s")
            # One that does not answer any more is not asked for long.
            await self._end(part, patience_s=_UNWELL_PATIENCE_S)
            await asyncio.sleep(delay)

    async def _start(self, part: Part) -> subprocess.Popen[bytes]:
        """Start a part and wait until it is ready; on failure nothing of it is left running."""
        log = self._log_of(part.name)
        self._set(part.name, "preparing")
        say = self._say(part.name)
        try:
            await in_thread(lambda: part.prepare(say))
        except StackError:
            raise
        except Exception as error:
            raise PartFailed(part.name, f"{type(error).__name__}: {error}") from error
        self._set(part.name, "starting")
        launch = part.launch()
        marked = Launch(
            launch.argv, {**launch.env, **self._mark_env}, launch.cwd, launch.user, launch.group
        )
        written = log.stat().st_size if log.exists() else 0
        try:
            process = spawn(marked, log)
        except OSError as error:
            said = f"{launch.argv[0]}: {error.strerror}"
            if part.instead is not None:
                raise cannot_run(part.instead, said) from error
            raise PartFailed(part.name, said) from error
        self._processes[part.name] = process
        part.started(process.pid)
        self._guardian.watch(process.pid, ask=part.stop_signal)
        self.status[part.name].identity = Identity(process.pid, mark_of(process.pid) or "")
        self._changed()
        deadline = time.monotonic() + part.start_limit_s
        while (problem := await self._problem(part)) is not None:
            code = process.poll()
            if code is not None or time.monotonic() > deadline:
                await self._end(part)
                if part.instead is not None and (reason := unfit(code, log, written)):
                    raise cannot_run(part.instead, reason)
                said = how_ended(code) if code is not None else f"not ready: {problem}"
                limit = "" if code is not None else f" after {part.start_limit_s:.0f} s"
                raise PartFailed(part.name, f"{said}{limit}", log)
            await asyncio.sleep(_POLL_S)
        self._set(part.name, "ready", part.ready_text)
        return process

    async def _watch(self, part: Part, process: subprocess.Popen[bytes]) -> str:
        """Return why the part must be started again, as soon as it must."""
        failures = 0
        check: asyncio.Task[str | None] | None = None
        next_check = time.monotonic() + part.health_every_s
        try:
            while True:
                code = process.poll()
                if code is not None:
                    return how_ended(code)
                if check is None and time.monotonic() >= next_check:
                    check = asyncio.create_task(self._problem(part))
                if check is not None and check.done():
                    problem, check = check.result(), None
                    next_check = time.monotonic() + part.health_every_s
                    if problem is None and failures:
                        self._set(part.name, "ready", part.ready_text)
                    failures = failures + 1 if problem else 0
                    if problem:
                        self._set(part.name, "unwell", problem)
                    if failures >= part.failures_allowed:
                        return f"{problem}, {failures} times in a row"
                await asyncio.sleep(_POLL_S)
        finally:
            if check is not None:
                check.cancel()

    async def _problem(self, part: Part) -> str | None:
        try:
            return await asyncio.wait_for(part.problem(), part.health_limit_s)
        except TimeoutError:
            return f"no answer within {part.health_limit_s:.0f} s"
        except StackError:
            raise
        except Exception as error:  # a check that breaks is a part that cannot be vouched for
            return f"{type(error).__name__}: {error}"

    async def _end(self, part: Part, *, patience_s: float | None = None) -> None:
        patience = part.patience_s if patience_s is None else patience_s
        process = self._processes.get(part.name)
        if process is None:
            return
        asked = await in_thread(
            lambda: end_group(
                process.pid, first=part.stop_signal, patience_s=patience, process=process
            )
        )
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1)
        # Only now: who is cancelled while ending a part leaves it to `_end_all`.
        if self._processes.get(part.name) is process:
            del self._processes[part.name]
        self._guardian.release(process.pid)
        self.status[part.name].identity = None
        if not asked:
            self._say(part.name)(f"did not end within {patience:.0f} s and was killed")

    async def _end_all(self) -> None:
        """End what runs, those first that nothing else needs."""
        while self._processes:
            needed = {
                need for name in self._processes for need in self._needs_of(name)
            } & self._processes.keys()
            last = [name for name in self._processes if name not in needed]
            for name in last:
                self._set(name, "stopping")
            parts = [self._items[name] for name in last]
            await asyncio.gather(*(self._end(part) for part in parts if isinstance(part, Part)))
            for name in last:
                self._set(name, "stopped")
        self._guardian.close()

    def _needs_of(self, name: str) -> set[str]:
        """What an item needs, and what those need: a step between two parts links them."""
        found: set[str] = set()
        todo = list(self._items[name].needs)
        while todo:
            need = todo.pop()
            if need in self._items and need not in found:
                found.add(need)
                todo += self._items[need].needs
        return found

    def _set(self, name: str, state: State, text: str = "") -> None:
        status = self.status[name]
        if (status.state, status.text) != (state, text):
            status.state, status.text, status.since = state, text, time.time()
            self._report(Event(name, state, text))
            self._changed()

    def _say(self, name: str) -> Callable[[str], None]:
        loop = asyncio.get_running_loop()

        def say(text: str) -> None:
            with suppress(RuntimeError):  # the loop may be over before a thread is
                loop.call_soon_threadsafe(self._report, Event(name, None, text))

        return say
