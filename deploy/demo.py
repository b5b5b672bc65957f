"""`make demo`: one durable task through every layer, a worker killed on the way.

Starts the embedded stack if none runs, ingests the project's own documentation, submits a task
that needs a search, a calculation and a written answer, kills the worker in the middle of the
answer, and shows what the promises are worth: the answer goes on at the token it had reached,
nothing was done twice, and the bill is right. Exits 0 only if all of that held.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from temporalio.client import Client

from api.cli.client import ApiClient, ApiRefusal, ApiUnreachable
from api.cli.ingest import ingest_paths
from api.cli.render import money, steps_table
from deploy.demo_report import (
    Watched,
    checks_of_first,
    checks_of_second,
    ledger_table,
    spend_table,
)
from deploy.evidence import Ledger, engine_count
from deploy.local.errors import StackError
from deploy.local.home import Home
from deploy.local.state import read_state
from settings import Settings, load_settings, state_folder
from workflows.client import connect_kwargs

__all__ = ["main"]

_ROOT = Path(__file__).resolve().parent.parent
_COLLECTION = "overline-docs"
_QUESTION = "How does Overline resume a generation? Also calculate 12*7."
_KILL_AFTER_TOKENS = 40
_PATIENCE_S = 60
_MIN_TOKENS, _MAX_TOKENS = 140, 200

# Files and pipes have no width of their own: wide enough for the tables.
_console = Console(highlight=False)
out = _console if _console.is_terminal else Console(highlight=False, width=120)


class DemoFailed(Exception):
    """The demo could not be carried through; the text says where."""


def main() -> int:
    """Run the demo; return the exit status."""
    began = time.monotonic()
    started = False
    try:
        started = _ensure_stack()
        checks = _demo()
        _title("What held")
        for held, text in checks:
            out.print(f"  {'[green]✓[/green]' if held else '[red]✗[/red]'} {text}")
        out.print(f"\n{time.monotonic() - began:.0f} s.")
        return 0 if all(held for held, _ in checks) else 1
    except (ApiRefusal, ApiUnreachable, DemoFailed, StackError) as error:
        out.print(f"\n[red]✗ The demo stopped:[/red] {error}")
        return 1
    finally:
        if started:
            _leave(keep="--keep" in sys.argv[1:])


def _demo() -> list[tuple[bool, str]]:
    settings = load_settings()
    with ApiClient(settings, timeout_s=60) as api:
        _title("2 · The project's own documentation, into pgvector")
        _ingest(api)
        # A seed of this run's own makes it a question the cache has never seen; with a
        # temperature of 0 it changes nothing else.
        request = _request(seed=secrets.randbelow(2**31))
        _title("3 · A task: search, calculate, write · and a worker killed in mid-sentence")
        out.print(f"[dim]asks:[/dim] {_QUESTION}")
        out.print(
            "[dim]answers: a model of 135 million parameters; its prose is not the point[/dim]"
        )
        seen = _Interruption(settings, api).run(request)
        task, steps = _result(api, seen.task)
        out.print(f"\n[dim]Web UI:[/dim] {task['links']['web_ui']}", soft_wrap=True)
        _title("4 · What it did, and the bill")
        out.print(steps_table(task, steps))
        ledger = Ledger(settings)
        try:
            evidence = ledger.evidence(seen.task, seen.step)
            out.print(ledger_table(evidence))
            out.print(spend_table(ledger.spend()))
            counted = asyncio.run(engine_count(settings, evidence.ledger))
            _title("5 · The same again")
            again = _submit(api, request)
            shown = time.monotonic()
            for _ in api.events(again):
                pass
            second, second_steps = _result(api, again)
            out.print(steps_table(second, second_steps))
            repeated = ledger.evidence(again, seen.step)
            took = time.monotonic() - shown
            out.print(f"answered by the cache in {took:.2f} s, saved {money(second['saved_usd'])}")
        finally:
            ledger.close()
    return [
        *checks_of_first(seen, task, evidence, counted),
        *checks_of_second(task, second, evidence, repeated),
    ]


def _ensure_stack() -> bool:
    """Have a stack ready; return whether it was started for the demo."""
    _title("1 · The stack")
    home = Home.open(state_folder())
    state = read_state(home)
    started = not state.running
    if started:
        overline = Path(sys.executable).parent / "overline"
        done = subprocess.run([overline, "up", "--detach"], stdout=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            raise DemoFailed("the stack did not come up")
    deadline = time.monotonic() + 180
    while not (state := read_state(home)).all_ready:
        if not state.running or time.monotonic() > deadline:
            raise DemoFailed(f"the stack in {home.folder} is not ready: see `overline status`")
        time.sleep(0.2)
    out.print(f"up in {home.folder}: {', '.join(state.parts)}")
    return started


def _leave(*, keep: bool) -> None:
    """Stop the stack that was started for the demo, unless it was asked to stay."""
    if keep:
        out.print(
            "The stack is up: try `overline status`, `overline psql`; `overline down` ends it."
        )
        return
    overline = Path(sys.executable).parent / "overline"
    subprocess.run([overline, "down"], stdout=subprocess.DEVNULL, check=False)
    out.print(
        "The stack is down again; what it holds stays. `.venv/bin/overline up` brings it back, Web "
        "UI and all; `make demo ARGS=--keep` leaves it up."
    )


def _ingest(api: ApiClient) -> None:
    pages = [_ROOT / "README.md", *sorted((_ROOT / "docs").glob("*.md"))]
    files = [(page, page.relative_to(_ROOT).as_posix()) for page in pages if page.exists()]
    if not files:
        raise DemoFailed(f"there is no documentation in {_ROOT}")
    done = ingest_paths(api, _COLLECTION, files, progress=out.is_terminal)
    if done["failed"]:
        raise DemoFailed(f"could not ingest {', '.join(done['failed'])}")
    out.print(
        f"{done['documents']} documents, {done['chunks']} chunks "
        f"({done['unchanged']} were there already)"
    )


def _request(seed: int) -> dict[str, Any]:
    must = {"must_call": True, "max_calls": 1}
    return {
        "input": _QUESTION,
        "model": "smollm2-135m-instruct",
        "collections": [_COLLECTION],
        "tools": [{"name": "search", **must}, {"name": "calculator", **must}],
        "sampling": {
            "temperature": 0.0,
            "min_tokens": _MIN_TOKENS,
            "max_tokens": _MAX_TOKENS,
            "seed": seed,
        },
        "tags": {"from": "demo"},
    }


class _Interruption:
    """The first run of the task: watched token by token, its worker killed on the way."""

    def __init__(self, settings: Settings, api: ApiClient) -> None:
        self._api = api
        self._seen = Watched()
        self._ledger = Ledger(settings)
        # Connected before there is a hurry: the answer is being written when it is needed.
        self._loop = asyncio.Runner()
        self._temporal = self._loop.run(
            Client.connect(settings.temporal_address, **connect_kwargs(settings))
        )
        self._killed_at = 0.0
        self._resumed = False

    def run(self, request: dict[str, Any]) -> Watched:
        """Submit the task and follow it to its end.

        Raises:
            DemoFailed: There was nothing to kill.
        """
        seen = self._seen
        try:
            seen.task = _submit(self._api, request)
            for event in self._api.events(seen.task, give_up_after_s=120):
                payload = event.payload
                if event.type == "text" and payload.get("channel") == "answer":
                    seen.step = event.step
                    self._take(str(payload.get("text", "")))
                elif event.type == "reset":
                    seen.resets += 1
                elif event.type == "step.completed" and payload.get("tool_call"):
                    call = payload["tool_call"]
                    words = ", ".join(map(str, call["arguments"].values()))
                    out.print(f"  step {event.step}: {call['name']}({words})", markup=False)
        finally:
            self._ledger.close()
            self._loop.close()
        out.print()
        if not self._killed_at:
            raise DemoFailed("the answer was finished before its worker could be killed")
        return seen

    def _take(self, text: str) -> None:
        progress = self._ledger.progress(self._seen.task, self._seen.step)
        # What was under way when the worker died still arrives; only then comes the next one's.
        if self._killed_at and not self._resumed and progress.attempts > 1:
            self._resumed = True
            out.print(
                f"\n[green]▶ another worker goes on at token {self._seen.reached + 1}[/green] "
                f"[dim]({time.monotonic() - self._killed_at:.1f} s later)[/dim]"
            )
        self._seen.text += text
        out.print(text, end="", markup=False, soft_wrap=True)
        if not self._killed_at and progress.tokens >= _KILL_AFTER_TOKENS:
            self._kill()

    def _kill(self) -> None:
        pid = self._loop.run(_worker_of(self._temporal, self._seen.task))
        if pid is None:
            return  # between two attempts: try again at the next token
        names = {part["pid"]: name for name, part in _parts().items()}
        if pid not in names:
            raise DemoFailed(f"the task runs on process {pid}, which is none of this stack's")
        os.kill(pid, signal.SIGKILL)
        self._killed_at = time.monotonic()
        time.sleep(0.3)  # a statement it had already sent may still be committed
        self._seen.reached = self._ledger.progress(self._seen.task, self._seen.step).tokens
        out.print(
            f"\n[red]✂ kill -9 {names[pid]} (process {pid}) at token {self._seen.reached}[/red] "
            "[dim]· its heartbeat will be missed[/dim]"
        )


def _submit(api: ApiClient, request: dict[str, Any]) -> str:
    """Submit a task as a polite client does: a part that is busy or back in a moment is waited for.

    The key makes it safe: a request that did arrive is not a second task.
    """
    key = {"Idempotency-Key": f"demo-{secrets.token_hex(8)}"}
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return str(api.post("/v1/tasks", request, key)["id"])
        except ApiRefusal as refusal:
            if refusal.status != 503 or time.monotonic() > deadline:
                raise
            time.sleep(1)


async def _worker_of(client: Client, task: str) -> int | None:
    """Process id of the worker that generates for a task now, as Temporal knows it."""
    description = await client.get_workflow_handle(f"task-{task}").describe()
    for activity in description.raw_description.pending_activities:
        if activity.activity_type.name.startswith("generation") and activity.last_worker_identity:
            return int(activity.last_worker_identity.partition("@")[0])
    return None


def _parts() -> Any:
    return read_state(Home.open(state_folder())).parts


def _result(api: ApiClient, task: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    result: dict[str, Any] = api.get(f"/v1/tasks/{task}")
    if result["status"] != "succeeded":
        raise DemoFailed(f"task {task} {result['status']}: {result['error']}")
    steps: list[dict[str, Any]] = api.get(f"/v1/tasks/{task}/steps")["steps"]
    return result, steps


def _title(text: str) -> None:
    out.print(f"\n[bold]{text}[/bold]")


if __name__ == "__main__":
    sys.exit(main())
