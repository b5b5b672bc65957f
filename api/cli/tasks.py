"""`overline submit`, `tasks` and `cancel`."""

from __future__ import annotations

import sys
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table
from uuid_utils.compat import uuid7

from api.cli.agents import read_document
from api.cli.client import ApiClient
from api.cli.render import console, fail, friendly, money, print_json, print_table
from api.cli.watch import follow_accepted
from settings import load_settings

__all__ = ["cancel", "submit", "tasks"]

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def submit(
    question: Annotated[
        str, typer.Argument(help="What the agent should do; `-` reads it from standard input.")
    ],
    agent: Annotated[
        str | None,
        typer.Option(help="Take what this agent says, NAME or NAME@VERSION; options here win."),
    ] = None,
    collection: Annotated[
        list[str] | None,
        typer.Option("--collection", "-c", help="Retrieve from this collection; repeatable."),
    ] = None,
    route: Annotated[
        str | None, typer.Option(help="Route that chooses the model, by default `default`.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Use exactly this model.")] = None,
    system: Annotated[str | None, typer.Option(help="System prompt.")] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option("--tool", help="A tool the agent may use, by default all; repeatable."),
    ] = None,
    must_call: Annotated[
        list[str] | None,
        typer.Option("--must-call", help="A tool the agent has to use once; repeatable."),
    ] = None,
    no_tools: Annotated[bool, typer.Option("--no-tools", help="Answer without tools.")] = False,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest answer, in tokens; by default 256.")
    ] = None,
    min_tokens: Annotated[int | None, typer.Option(help="Shortest answer, in tokens.")] = None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on to --max-tokens whatever the model thinks.")
    ] = False,
    temperature: Annotated[float | None, typer.Option(help="0, the default, is greedy.")] = None,
    output_schema: Annotated[
        Path | None, typer.Option(help="File with a JSON Schema that the answer must obey.")
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(help="Longest loop, in steps; by default 8.")
    ] = None,
    max_cost: Annotated[str | None, typer.Option(help="Budget of this task, in USD.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Never use the cache.")] = False,
    user: Annotated[str | None, typer.Option(help="End user to attribute the spend to.")] = None,
    tag: Annotated[
        list[str] | None, typer.Option("--tag", help="NAME=VALUE for attribution; repeatable.")
    ] = None,
    idempotency_key: Annotated[
        str | None, typer.Option(help="Submitting again with this key gives the first task.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Do not wait.")] = False,
    as_json: Json = False,
) -> None:
    """Submit a task; stream its tokens as they come, then show what every step did and cost."""
    text = sys.stdin.read() if question == "-" else question
    # What is not said here is the agent's, or the API's default.
    tools = None
    if agent is None or no_tools or tool is not None or must_call:
        tools = _tools(tool, must_call, no_tools, bool(collection))
    body: dict[str, Any] = _given(
        input=text,
        agent=agent,
        system=system,
        route=route,
        model=model,
        tools=tools,
        collections=collection,
        sampling=_given(
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            ignore_eos=ignore_eos or None,
        ),
        limits=_given(max_steps=max_steps, max_cost_usd=_usd(max_cost, as_json)),
        output_schema=read_document(output_schema, as_json) if output_schema else None,
        cache="off" if no_cache else None,
        user=user,
        tags=_tags(tag, as_json),
    )
    # A key of our own makes the request safe to repeat when the answer gets lost.
    key = idempotency_key or str(uuid7())
    with friendly(as_json), ApiClient(load_settings()) as api:
        accepted = api.post("/v1/tasks", body, {"Idempotency-Key": key})
        succeeded = follow_accepted(api, accepted, detach=detach, as_json=as_json)
    if not succeeded:
        raise typer.Exit(1)


def tasks(
    status: Annotated[str | None, typer.Option(help="Only tasks in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=200, help="How many, newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """List tasks, newest first."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        page = api.get("/v1/tasks", {"status": status, "limit": limit})
    if as_json:
        print_json(page)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("task", "status", "created", "steps", "cost"):
        table.add_column(name, no_wrap=True)
    table.add_column("asked", no_wrap=True, overflow="ellipsis")
    for task in page["tasks"]:
        table.add_row(
            task["id"],
            task["status"],
            task["created_at"][:19].replace("T", " "),
            str(task["steps"]),
            money(task["cost_usd"]),
            task["preview"],
        )
    print_table(table)


def cancel(
    task: Annotated[str, typer.Argument(help="Task id.")],
    as_json: Json = False,
) -> None:
    """Cancel a task; the engine stops generating for it."""
    with friendly(as_json), ApiClient(load_settings()) as api:
        answer = api.post(f"/v1/tasks/{task}/cancel")
    if as_json:
        print_json(answer)
    else:
        console.print(f"task {answer['id']}: {answer['detail']}", markup=False)


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _tools(
    tool: list[str] | None, must_call: list[str] | None, no_tools: bool, searchable: bool
) -> list[dict[str, Any]]:
    if no_tools:
        return []
    owed = must_call or []
    # Without a collection there is nothing to search.
    offered = tool if tool is not None else ["calculator", *(["search"] if searchable else [])]
    names = dict.fromkeys([*owed, *offered])
    return [{"name": name, "must_call": name in owed} for name in names]


def _usd(text: str | None, as_json: bool) -> str | None:
    if text is None:
        return None
    try:
        return f"{Decimal(text):f}"
    except InvalidOperation:
        fail("--max-cost takes an amount in USD, such as 0.01", as_json)


def _tags(tags: list[str] | None, as_json: bool) -> dict[str, str]:
    pairs = [tag.partition("=") for tag in tags or ()]
    if any(not name or not sign for name, sign, _ in pairs):
        fail("--tag takes NAME=VALUE", as_json)
    return {name: value for name, _, value in pairs}
