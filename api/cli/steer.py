"""`overline pause`, `resume`, `message`, `fork`, `diff` and `why`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from uuid_utils.compat import uuid7

from api.cli.client import ApiClient, ApiRefusal, ApiUnreachable
from api.cli.render import (
    UNREACHABLE,
    called,
    console,
    friendly,
    money,
    print_json,
    print_table,
    seconds,
)
from api.cli.watch import follow_accepted
from settings import load_settings

__all__ = ["diff", "fork", "message", "pause", "resume", "why"]

TaskId = Annotated[str, typer.Argument(help="Task id.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]

_SHOWN = 60


def pause(task: TaskId, as_json: Json = False) -> None:
    """Have a task wait before its next step; the step that runs is finished."""
    _steer("pause", task, as_json)


def resume(task: TaskId, as_json: Json = False) -> None:
    """Let a paused task go on."""
    _steer("resume", task, as_json)


def message(
    task: TaskId,
    text: Annotated[str, typer.Argument(help="What to say; `-` reads it from standard input.")],
    idempotency_key: Annotated[
        str | None, typer.Option(help="Saying it again with this key says it once.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say something to a running task; it is read before the task's next step."""
    body = {"content": sys.stdin.read() if text == "-" else text}
    # A key of our own makes the request safe to repeat when the answer gets lost.
    headers = {"Idempotency-Key": idempotency_key or str(uuid7())}
    with friendly(as_json), ApiClient(load_settings()) as api:
        answer = api.post(f"/v1/tasks/{task}/messages", body, headers)
    if as_json:
        print_json(answer)
    else:
        console.print(f"message {answer['number']} of task {answer['task_id']} is queued")


def _steer(verb: str, task: str, as_json: bool) -> None:
    with friendly(as_json), ApiClient(load_settings()) as api:
        answer = api.post(f"/v1/tasks/{task}/{verb}")
    if as_json:
        print_json(answer)
    else:
        console.print(f"task {answer['id']} · {answer['status']}: {answer['detail']}", markup=False)


def fork(
    task: TaskId,
    from_step: Annotated[
        int, typer.Option("--from-step", min=1, help="First step to run anew.")
    ] = 1,
    model: Annotated[str | None, typer.Option(help="Use exactly this model.")] = None,
    route: Annotated[str | None, typer.Option(help="Route that chooses the model.")] = None,
    prompt: Annotated[str | None, typer.Option(help="Another question.")] = None,
    system: Annotated[str | None, typer.Option(help="Another system prompt.")] = None,
    tool_result: Annotated[
        str | None,
        typer.Option("--tool-result", help="Another answer of the tool of the step before."),
    ] = None,
    tool_call_id: Annotated[
        str | None, typer.Option(help="Which call that is, where the step made several.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Longest answer, in tokens.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is greedy.")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Longest loop, in steps.")] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Forking again with this key gives the first fork.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait.")] = False,
    as_json: Json = False,
) -> None:
    """Rerun a task from a step, with a change; the steps before it are not paid for again."""
    sampling = _given(max_tokens=max_tokens, temperature=temperature)
    limits = _given(max_steps=max_steps)
    body = _given(
        from_step=from_step,
        model=model,
        route=route,
        prompt=prompt,
        system=system,
        tool_result=tool_result,
        tool_call_id=tool_call_id,
        sampling=sampling or None,
        limits=limits or None,
    )
    headers = {"Idempotency-Key": idempotency_key or str(uuid7())}
    with friendly(as_json), ApiClient(load_settings()) as api:
        accepted = api.post(f"/v1/tasks/{task}/fork", body, headers)
        succeeded = follow_accepted(api, accepted, detach=detach, as_json=as_json)
    if not succeeded:
        raise typer.Exit(1)


def diff(
    task: TaskId,
    other: Annotated[str, typer.Argument(help="Id of the task to compare it with.")],
    as_json: Json = False,
) -> None:
    """Compare two tasks step by step."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        answer = api.get(f"/v1/tasks/{task}/diff/{other}")
    if as_json:
        print_json(answer)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("step", justify="right")
    table.add_column("state", no_wrap=True)
    for side in ("left", "right"):
        table.add_column(f"{side} {answer[side]['id'][-8:]}", overflow="fold")
    for name in ("tokens", "cost", "time"):
        table.add_column(f"Δ {name}", justify="right", no_wrap=True)
    for step in answer["steps"]:
        table.add_row(
            str(step["step"]),
            step["state"].replace("_", " ")
            + (f": {', '.join(step['differs'])}" if step["differs"] else ""),
            _side(step["left"]),
            _side(step["right"]),
            f"{step['prompt_tokens'] + step['completion_tokens']:+d}",
            _signed(step["cost_usd"]),
            seconds(step["duration_ms"]),
        )
    print_table(table)
    for side in ("left", "right"):
        total = answer[side]
        console.print(
            f"{side}: {total['status']}, {total['steps']} steps ({total['inherited']} inherited), "
            f"{total['prompt_tokens']} + {total['completion_tokens']} tokens, "
            f"{money(total['cost_usd'])}, {seconds(total['duration_ms'])}",
            markup=False,
        )


def why(task: TaskId, as_json: Json = False) -> None:
    """Say why a task is not moving, and what to do; also when parts of Overline are down."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        answer = _asked(api, task)
    if as_json:
        print_json(answer)
    else:
        for number, reason in enumerate(answer["reasons"]):
            mark = "·" if number else "→"
            console.print(f"{mark} {reason['text']}", markup=False)
            console.print(f"  {reason['advice']}", markup=False, style="dim")
            console.print(f"  {reason['code']}", markup=False, style="dim")
    if answer["status"] is None:
        raise typer.Exit(UNREACHABLE)


def _asked(api: ApiClient, task: str) -> Any:
    """Ask; that the API or the database behind it is down is an answer too."""
    try:
        return api.get(f"/v1/tasks/{task}/why")
    except ApiUnreachable as exc:
        return _down("api_down", str(exc), "Look at `overline status` and `overline logs api`.")
    except ApiRefusal as refusal:
        if refusal.problem.get("part") != "database":
            raise
        return _down(
            "database_down",
            "Postgres does not answer. Nothing of the task is lost; it goes on when it is back.",
            "Look at `overline status` and `overline logs postgres`.",
        )


def _down(code: str, text: str, advice: str) -> dict[str, Any]:
    reason = {"code": code, "text": text, "advice": advice, "facts": {}}
    return {"status": None, "moving": False, "reasons": [reason]}


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _side(step: dict[str, Any] | None) -> str:
    if step is None:
        return ""
    calls = step["chosen_calls"]
    if step["tool_call"]:
        calls = [{**step["tool_call"], "result": step["tool_result"]}]
    said = "; ".join(
        called(call) + (f" → {' '.join(call['result'].split())}" if call["result"] else "")
        for call in calls
    ) or " ".join((step["text"] or "").split())
    model = step["model"] or step["status"]
    inherited = ", inherited" if step["inherited"] else ""
    return f"{model}{inherited}: {said if len(said) <= _SHOWN else said[:_SHOWN] + '…'}"


def _signed(amount: str) -> str:
    return f"-{money(amount[1:])}" if amount.startswith("-") else money(amount)
