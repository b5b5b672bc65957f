"""A map: one task for each of many inputs, every one answered once and billed once."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import pytest_asyncio
from temporalio.client import Client

from inference.client import TritonClient
from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.histories import assert_replays, runs_of
from workflows.client import connect_kwargs

MODEL = "scripted"
RUN_INPUTS = 20


@pytest.fixture(scope="module")
def stack() -> Iterator[RunningStack]:
    """A stack whose maps go on in a new run early."""
    with tempfile.TemporaryDirectory(prefix="overline-") as folder:
        running = RunningStack(
            Path(folder) / "stack",
            {
                "OVERLINE_MODELS": MODEL,
                "OVERLINE_WORKERS": "2",
                "OVERLINE_MAP_RUN_INPUTS": str(RUN_INPUTS),
            },
        )
        try:
            running.up()
            yield running
        finally:
            running.overline("down")


@pytest_asyncio.fixture(scope="module")
async def engine(stack: RunningStack) -> AsyncIterator[TritonClient]:
    """The stack's Triton, asked past everything else."""
    async with TritonClient(stack.settings.triton_urls[0]) as client:
        yield client


@pytest.fixture(scope="module")
def books(stack: RunningStack, engine: TritonClient) -> Books:
    """Ledger and meter."""
    return Books(stack.admin_url, engine)


def answers(count: int, **attributes: Any) -> list[str]:
    """Return inputs that are answered by their own number."""
    return [say(f"answer {number}", **attributes) for number in range(1, count + 1)]


async def submit(caller: Caller, inputs: list[Any], **fields: Any) -> str:
    """Submit a map."""
    body = {"model": MODEL, "cache": "off", "inputs": inputs, **fields}
    headers = {"Idempotency-Key": str(uuid4())}
    accepted = await caller.request("POST", "/v1/maps", json=body, headers=headers)
    return str(accepted.json()["id"])


async def results(caller: Caller, map_id: str, *, limit: int = 1000) -> list[dict[str, Any]]:
    """Read all results of a map, page by page."""
    found: list[dict[str, Any]] = []
    cursor: int | None = 0
    while cursor is not None:
        path = f"/v1/maps/{map_id}/results"
        params = {"limit": limit, "cursor": cursor}
        page = (await caller.request("GET", path, params=params)).json()
        found += page["results"]
        cursor = page["next_cursor"]
    return found


async def progressed(caller: Caller, map_id: str, *, done: int) -> dict[str, Any]:
    """Wait until so many inputs are answered."""
    while (read := await caller.task(map_id))["progress"]["done"] < done:
        assert read["finished_at"] is None, read
        await asyncio.sleep(0.1)
    return read


def assert_each_once(books: Books, found: list[dict[str, Any]]) -> None:
    """Every input has one task with one call that was paid for once."""
    tasks = [each["task_id"] for each in found]
    assert len(set(tasks)) == len(tasks)
    rows = books.ledger(*tasks)
    books.assert_no_call_ran_twice(rows)
    billed = Counter(str(row["task_id"]) for row in rows if row["outcome"] == "succeeded")
    assert billed == Counter(tasks)
    paid: Counter[str] = Counter()
    for row in rows:
        paid[str(row["task_id"])] += row["billed_usd"]
    assert {each["task_id"]: float(each["cost_usd"]) for each in found} == pytest.approx(
        {task: float(usd) for task, usd in paid.items()}
    )


async def test_every_input_is_answered_once_whatever_dies(
    caller: Caller, stack: RunningStack, books: Books
) -> None:
    """60 inputs over three runs of the workflow and more, with its workers killed on the way."""
    count = 60
    inputs: list[Any] = answers(count, pace_ms=15)
    inputs[7] = [
        {"role": "user", "content": "Before."},
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": say("answer 8", turn=2)},
    ]
    map_id = await submit(caller, inputs, concurrency=6, user="ada", tags={"project": "m"})
    for done, victims in ((5, ("worker-1", "worker-2")), (30, ("worker-1",))):
        await progressed(caller, map_id, done=done)
        kill([stack.pid(victim) for victim in victims])
    read = await caller.ended(map_id, limit_s=240)
    assert (read["status"], read["kind"], read["preview"]) == (
        "succeeded",
        "map",
        "map over 60 inputs",
    )
    assert read["progress"] == {
        "total": count, "waiting": 0, "running": 0, "done": count, "failed": 0, "skipped": 0,
    }  # fmt: skip
    found = await results(caller, map_id, limit=17)
    assert [each["number"] for each in found] == list(range(1, count + 1))
    assert [each["answer"] for each in found] == [f"answer {n}" for n in range(1, count + 1)]
    assert_each_once(books, found)
    assert read["tree"]["tasks"] == count + 1
    assert float(read["tree"]["cost_usd"]) == pytest.approx(
        sum(float(each["cost_usd"]) for each in found)
    )
    first = await caller.task(found[0]["task_id"])
    assert (first["user"], first["tags"], first["parent_task_id"]) == (
        "ada",
        {"project": "m"},
        map_id,
    )
    listed = (await caller.request("GET", "/v1/tasks")).json()["tasks"]
    assert [each["id"] for each in listed] == [map_id]
    books.assert_nothing_held(caller.organisation_id)
    settings = stack.settings
    client = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
    assert len(await runs_of(client, f"task-{map_id}")) >= count // RUN_INPUTS
    await assert_replays(stack, [f"task-{map_id}", f"task-{found[0]['task_id']}"])


async def test_no_more_than_concurrency_run_at_a_time(caller: Caller, books: Books) -> None:
    map_id = await submit(caller, answers(9, pace_ms=60), concurrency=3)
    most = 0
    while (await caller.task(map_id))["finished_at"] is None:
        (row,) = books.rows(
            "select count(*) as running from tasks where parent_task_id = %s"
            " and status = 'running'",
            UUID(map_id),
        )
        most = max(most, row["running"])
    assert 1 < most <= 3


async def test_an_input_that_fails_fails_alone(caller: Caller, books: Books) -> None:
    inputs = answers(6)
    inputs[2] = say("x", unheard_of=1)
    map_id = await submit(caller, inputs, concurrency=2)
    read = await caller.ended(map_id)
    assert read["status"] == "succeeded"
    assert (read["progress"]["done"], read["progress"]["failed"]) == (5, 1)
    found = await results(caller, map_id)
    assert found[2]["error"]["code"] == "OVL-1007"
    assert [each["status"] for each in found].count("succeeded") == 5
    books.assert_nothing_held(caller.organisation_id)


async def test_stop_begins_nothing_after_a_failure(caller: Caller, books: Books) -> None:
    inputs = answers(30)
    inputs[1] = say("x", unheard_of=1)
    map_id = await submit(caller, inputs, concurrency=1, on_error="stop")
    read = await caller.ended(map_id)
    assert (read["status"], read["error"]["code"]) == ("failed", "OVL-3006")
    found = await results(caller, map_id)
    assert [each["status"] for each in found[:2]] == ["succeeded", "failed"]
    assert found[0]["answer"] == "answer 1"
    # Those filed ahead of their turn never began, and the others were not even filed.
    assert {each["status"] for each in found[2:]} == {"cancelled", "skipped"}
    assert books.ledger(*[each["task_id"] for each in found[2:] if each["task_id"]]) == []
    books.assert_nothing_held(caller.organisation_id)


async def test_cancelling_a_map_settles_what_runs(caller: Caller, books: Books) -> None:
    inputs = [say(words(200), pace_ms=30)] * 20
    map_id = await submit(caller, inputs, concurrency=4, sampling={"max_tokens": 2000})
    while (await caller.task(map_id))["tree"]["tasks"] < 5:
        await asyncio.sleep(0.1)
    child = (await results(caller, map_id))[0]["task_id"]
    async with caller.watch(child) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 10)
        await caller.cancel(map_id)
        assert (await watcher.to_end()).type == "task.cancelled"
    read = await caller.ended(map_id)
    assert read["status"] == "cancelled"
    assert read["progress"]["running"] == read["progress"]["waiting"] == 0
    books.assert_nothing_held(caller.organisation_id)


async def test_a_map_is_paused_and_goes_on(caller: Caller) -> None:
    map_id = await submit(caller, answers(24, pace_ms=20), concurrency=2)
    await progressed(caller, map_id, done=2)
    await caller.request("POST", f"/v1/tasks/{map_id}/pause")
    # Calls that run are finished: they are all there is to these tasks.
    await asyncio.sleep(2)
    standing = (await caller.task(map_id))["progress"]
    await asyncio.sleep(1.5)
    read = await caller.task(map_id)
    assert (read["status"], read["progress"]) == ("paused", standing)
    why = (await caller.request("GET", f"/v1/tasks/{map_id}/why")).json()
    assert why["reasons"][0]["code"] == "paused"
    await caller.request("POST", f"/v1/tasks/{map_id}/resume")
    assert (await caller.ended(map_id))["progress"]["done"] == 24


async def test_the_budget_of_the_whole_is_never_exceeded(caller: Caller, books: Books) -> None:
    worst = 131_072 * 0.40 / 1_000_000
    cap = 1.2 * worst
    map_id = await submit(caller, answers(12), concurrency=6, whole={"max_cost_usd": f"{cap:.9f}"})
    # One call at a time fits; the others wait for it, and all of them are cheap in the end.
    read = await caller.ended(map_id)
    assert read["progress"]["done"] == 12, read
    (budget,) = books.rows(
        "select cap_usd, spent_usd, held_usd from budgets where scope_id = %s", UUID(map_id)
    )
    assert budget["held_usd"] == 0
    assert float(budget["spent_usd"]) == float(read["tree"]["cost_usd"])

    tokens = await submit(caller, answers(12), concurrency=1, whole={"max_tokens": 200})
    read = await caller.ended(tokens)
    # What is used cannot come back: whoever is next is refused.
    assert 0 < read["progress"]["done"] < 12
    codes = {each["error"]["code"] for each in await results(caller, tokens) if each["error"]}
    assert codes == {"OVL-3004"}
    books.assert_nothing_held(caller.organisation_id)


async def test_a_map_ends_when_nothing_of_its_budget_is_left(caller: Caller, books: Books) -> None:
    worst = (131_072 - 4096) * 0.10 / 1_000_000 + 4096 * 0.40 / 1_000_000
    # The first answers cost so much that the worst case of a next one does not fit.
    map_id = await submit(
        caller,
        [say("a", tokens=4000)] * 12,
        concurrency=1,
        whole={"max_cost_usd": f"{worst + 0.002:.9f}"},
        sampling={"max_tokens": 4096},
    )
    read = await caller.ended(map_id, limit_s=120)
    assert read["status"] == "failed", read
    assert read["error"]["code"] == "OVL-3001"
    assert read["progress"]["done"] >= 1
    assert read["progress"]["skipped"] >= 1
    books.assert_nothing_held(caller.organisation_id)


async def test_a_deadline_of_the_whole(caller: Caller, books: Books) -> None:
    inputs = [say(words(300), pace_ms=30)] * 3
    map_id = await submit(
        caller,
        inputs,
        concurrency=1,
        whole={"deadline_seconds": 3},
        sampling={"max_tokens": 2000},
    )
    read = await caller.ended(map_id)
    assert (read["status"], read["error"]["code"]) == ("failed", "OVL-3005")
    books.assert_nothing_held(caller.organisation_id)


async def test_an_agent_over_inputs_asks_its_own_sub_agents(caller: Caller) -> None:
    inner = {"name": "inner", "model": MODEL, "cache": "off", "system": say("inside")}
    await caller.request("POST", "/v1/agents", json=inner)
    choice = json.dumps({"tool": "agent.inner", "arguments": {"input": "?"}})
    outer = {
        "name": "outer",
        "model": MODEL,
        "cache": "off",
        "system": f"[[call text={json.dumps(choice)}]]" + say("outside"),
        "tools": [{"name": "agent.inner", "must_call": True}],
    }
    await caller.request("POST", "/v1/agents", json=outer)
    body = {"agent": "outer", "inputs": ["one", "two"], "concurrency": 2}
    map_id = (await caller.request("POST", "/v1/maps", json=body)).json()["id"]
    read = await caller.ended(map_id)
    assert (read["agent"], read["tree"]["tasks"]) == ("outer@1", 5)
    found = await results(caller, map_id)
    assert [each["answer"] for each in found] == ["outside"] * 2
    for each in found:
        own = await caller.task(each["task_id"])
        assert float(each["cost_usd"]) == float(own["tree"]["cost_usd"]) > float(own["cost_usd"])


async def test_ten_thousand_inputs_and_not_one_more(caller: Caller, books: Books) -> None:
    inputs = [f"{number} {'x' * 200}" for number in range(10_001)]
    with pytest.raises(Refused) as refused:
        await submit(caller, inputs)
    assert refused.value.status == 422
    assert refused.value.problem["errors"][0]["code"] == "too_long"
    map_id = await submit(caller, inputs[:-1], concurrency=1, limits={"max_steps": 1})
    await caller.cancel(map_id)
    read = await caller.ended(map_id)
    assert read["progress"]["total"] == 10_000
    (row,) = books.rows(
        "select count(*) as filed from tasks where parent_task_id = %s", UUID(map_id)
    )
    assert row["filed"] < 100
    page = (await caller.request("GET", f"/v1/maps/{map_id}/results?cursor=9999")).json()
    assert [each["number"] for each in page["results"]] == [10_000]
    assert page["next_cursor"] is None


@pytest.mark.parametrize(
    ("changed", "pointer"),
    [
        ({"inputs": []}, "/inputs"),
        ({"inputs": ["a", " "]}, "/inputs/1"),
        ({"inputs": [[{"role": "assistant", "content": "a"}]]}, ""),
        ({"concurrency": 201}, "/concurrency"),
        ({"on_error": "explode"}, "/on_error"),
        ({"input": "a"}, "/input"),
        ({"whole": {"max_cost_usd": "0"}}, "/whole/max_cost_usd"),
    ],
)
async def test_a_map_that_makes_no_sense_is_refused(
    caller: Caller, changed: dict[str, Any], pointer: str
) -> None:
    with pytest.raises(Refused) as refused:
        await submit(caller, ["a"], **changed) if "inputs" not in changed else await submit(
            caller, changed["inputs"]
        )
    assert refused.value.status == 422
    assert refused.value.problem["errors"][0]["pointer"].startswith(pointer)


async def test_a_map_on_file_is_started_whoever_died(caller: Caller, stack: RunningStack) -> None:
    """Its API process died between filing and starting it: another one starts it."""
    map_id = await submit(caller, answers(2))
    await caller.ended(map_id)
    with pytest.raises(Refused):
        await caller.request("POST", f"/v1/tasks/{map_id}/fork", json={"from_step": 1})
    # The same again, as it is when nobody has marked its start.
    copied = str(uuid4())
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id,"
            " request_digest, route, input, worst_case_usd, kind, created_at)"
            " select organisation_id, %s, team_id, key_id, 'task-' || %s, 'd', route, input,"
            " worst_case_usd, kind, now() - interval '1 minute' from tasks where task_id = %s",
            (copied, copied, map_id),
        )
        connection.execute(
            "insert into map_items (organisation_id, task_id, number, input)"
            " select organisation_id, %s, number, input from map_items where task_id = %s",
            (copied, map_id),
        )
    assert (await caller.ended(copied))["progress"]["done"] == 2


def test_the_command_line_maps_a_file_and_shows_the_tree(
    stack: RunningStack, tmp_path: Path
) -> None:
    file, out = tmp_path / "inputs.jsonl", tmp_path / "answers.jsonl"
    lines = [say("one"), {"input": say("two")}, [{"role": "user", "content": say("three")}]]
    file.write_text("\n".join(json.dumps(line) for line in lines))
    words = ("map", str(file), "--model", MODEL, "--concurrency", "2")
    done = stack.json(*words, "-o", str(out))
    assert done["map"]["progress"]["done"] == 3
    answered = [json.loads(line)["answer"] for line in out.read_text().splitlines()]
    assert answered == ["one", "two", "three"]
    shown = stack.overline("tree", done["map"]["id"])
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("succeeded") == 4
    file.write_text("not JSON")
    assert stack.overline(*words).returncode == 1
