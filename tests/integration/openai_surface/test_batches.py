"""Files and batches with the official package: each line is made once, and says what came of it."""

from __future__ import annotations

import asyncio
import json
from codecs import BOM_UTF8
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import openai
import psycopg
import pytest
from temporalio.client import Client

from inference.client import TritonClient
from store.provision import create_key, create_team, set_key_enabled
from tests.integration.openai_surface.batching import (
    CHAT,
    ended,
    lines,
    read,
    submitted,
    uploaded,
)
from tests.integration.openai_surface.conftest import client_of
from tests.integration.running import RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say, words
from tests.integration.tasks.histories import assert_replays, runs_of
from workflows.client import connect_kwargs

pytestmark = pytest.mark.timeout(180)


def batch_line(custom_id: str, url: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def jsonl(*each: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(line).encode() + b"\n" for line in each)


async def test_files_are_kept_as_they_were_sent_and_only_whole(
    strict: openai.AsyncOpenAI, sdk: openai.AsyncOpenAI, caller: Caller, books: Books
) -> None:
    # Two pieces of whole lines, and a last line without an end.
    data = b"\n" + lines([f"{number} " + "x" * 1_000 for number in range(1_500)])
    file = await uploaded(strict, data)
    assert (file.bytes, file.filename, file.purpose) == (len(data), "in.jsonl", "batch")
    assert file.status == "processed"
    assert file.expires_at is not None
    assert (await strict.files.retrieve(file.id)) == file
    assert (await sdk.files.content(file.id)).content == data
    (row,) = books.rows(
        "select max(part) as last from file_parts",
    )
    assert row["last"] >= 1
    short: Any = {"expires_after": {"anchor": "created_at", "seconds": 3_600}}
    other = await strict.files.create(file=("b.jsonl", lines(["hi"])), purpose="batch", **short)
    assert other.expires_at == other.created_at + 3_600
    page = await strict.files.list(limit=1, purpose="batch")
    assert [each.id for each in page.data] == [other.id]
    assert [each.id async for each in strict.files.list(limit=1)] == [other.id, file.id]
    assert [each.id async for each in strict.files.list(order="asc")] == [file.id, other.id]
    assert (await strict.files.delete(file.id)).deleted
    for gone in (file.id, "file-" + "0" * 32, "file-x", "x"):
        with pytest.raises(openai.NotFoundError):
            await sdk.files.retrieve(gone)

    good = lines(["hi"])
    for bad, line in (
        (good + b"\n{", 2),
        (good + b"\n\n[]", 3),
        (good + b'\n{"custom_id": "a"}', 2),
        (b"\xff", 1),
        (good + b"\n" + b"x" * 2_100_000, 2),
    ):
        with pytest.raises(openai.BadRequestError) as refused:
            await uploaded(sdk, bad)
        body: Any = refused.value.body
        assert (refused.value.code, body["line"]) == ("invalid_jsonl", line)
    for empty in (b"", b"\n\n"):
        with pytest.raises(openai.BadRequestError):
            await uploaded(sdk, empty)
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.files.create(file=("a", good), purpose="assistants")
    assert refused.value.param == "purpose"
    with pytest.raises(openai.BadRequestError):
        await sdk.files.create(
            file=("a", good), purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
        )
    json_body = await caller.http.post("/v1/files", json={"purpose": "batch"})
    assert json_body.status_code == 415
    assert json_body.json()["error"]["code"] == "invalid_content_type"
    # Of what was refused nothing is left.
    assert [each.id async for each in sdk.files.list()] == [other.id]
    (row,) = books.rows(
        "select count(*) as n from files where organisation_id = %s and state = 'writing'",
        caller.organisation_id,
    )
    assert row["n"] == 0


async def test_a_batch_answers_each_line_as_its_endpoint_would(
    strict: openai.AsyncOpenAI,
    sdk: openai.AsyncOpenAI,
    caller: Caller,
    books: Books,
    stack: RunningStack,
) -> None:
    questions = [say(f"answer {number}") for number in range(6)]
    data = (
        lines(questions, max_completion_tokens=50)
        + b"\n\n"
        + jsonl(
            batch_line(
                "refused",
                CHAT,
                model="scripted",
                messages=[{"role": "user", "content": say("x", unheard_of=1)}],
            ),
            batch_line(
                "theirs",
                CHAT,
                model="mock",
                messages=[{"role": "user", "content": say("from afar")}],
            ),
            batch_line(
                "broken", CHAT, model="mock-500", messages=[{"role": "user", "content": "hi"}]
            ),
        )
    )
    batch = await submitted(strict, data, metadata={"project": "x"})
    assert batch.status == "validating"
    done = await ended(strict, batch.id)
    assert done.status == "completed"
    assert done.request_counts is not None
    assert done.request_counts.to_dict() == {"total": 9, "completed": 7, "failed": 2}
    assert done.metadata == {"project": "x"}
    answers, errors = await read(sdk, done.output_file_id), await read(sdk, done.error_file_id)
    assert list(answers) == [*(f"r{number}" for number in range(6)), "theirs"]
    assert list(errors) == ["refused", "broken"]
    for number in range(6):
        response = answers[f"r{number}"]["response"]
        assert response["status_code"] == 200
        assert response["body"]["object"] == "chat.completion"
        assert response["body"]["choices"][0]["message"]["content"] == f"answer {number}"
    assert answers["theirs"]["response"]["body"]["choices"][0]["message"]["content"] == "from afar"
    assert errors["refused"]["response"]["status_code"] in (400, 422)
    assert errors["broken"]["response"]["status_code"] == 500
    assert errors["broken"]["response"]["body"]["error"]["message"]

    # Each is a call of its own, in the ledger under the batch; what it says it cost it did cost.
    tasks = [each["response"]["request_id"] for each in answers.values()]
    rows = books.ledger(*tasks)
    assert len(rows) == 7
    assert all(row["tags"] == {"project": "x", "batch": batch.id} for row in rows)
    billed = sum(row["billed_usd"] for row in rows)
    extra: Any = done
    assert Decimal(extra.cost_usd) == billed > 0
    assert done.usage is not None
    assert done.usage.output_tokens == sum(row["output_tokens"] for row in rows)
    await books.assert_attempts_equal([row for row in rows if row["model"] == "scripted"])
    books.assert_nothing_held(caller.organisation_id)
    (left,) = books.rows(
        "select count(*) as n from batch_lines where organisation_id = %s", caller.organisation_id
    )
    assert left["n"] == 0
    again = await strict.chat.completions.retrieve(answers["r0"]["response"]["body"]["id"])
    assert again.choices[0].message.content == "answer 0"
    (page,) = [await strict.batches.list(limit=1)]
    assert [each.id for each in page.data] == [batch.id]
    with pytest.raises(openai.ConflictError):
        await sdk.batches.cancel(batch.id)
    for gone in ("batch_" + "0" * 32, "x"):
        with pytest.raises(openai.NotFoundError):
            await sdk.batches.retrieve(gone)
    await assert_replays(stack, [f"batch-{_id(batch.id)}"])


def _id(batch_id: str) -> str:
    return str(UUID(hex=batch_id.removeprefix("batch_")))


async def test_every_endpoint_takes_batches(sdk: openai.AsyncOpenAI) -> None:
    asked = {
        "/v1/responses": {"model": "scripted", "input": say("a response")},
        "/v1/completions": {"model": "smollm2-135m-instruct", "prompt": "Once", "max_tokens": 4},
        "/v1/embeddings": {"model": "all-minilm-l6-v2", "input": ["a", "b"]},
    }
    made = [
        # A mark of UTF-8 before the first line is no part of it.
        await submitted(sdk, BOM_UTF8 + jsonl(batch_line("a", url, **body)), url)
        for url, body in asked.items()
    ]
    bodies = []
    for batch in made:
        done = await ended(sdk, batch.id)
        assert done.status == "completed", done
        (line,) = (await read(sdk, done.output_file_id)).values()
        bodies.append(line["response"]["body"])
    assert bodies[0]["output"][0]["content"][0]["text"] == "a response"
    assert bodies[1]["usage"]["completion_tokens"] == 4
    assert [len(each["embedding"]) for each in bodies[2]["data"]] == [384, 384]


async def test_what_is_wrong_with_a_batch_is_said_line_by_line_before_a_token_is_made(
    strict: openai.AsyncOpenAI, sdk: openai.AsyncOpenAI, caller: Caller, books: Books
) -> None:
    good = batch_line("a", CHAT, model="scripted", messages=[{"role": "user", "content": "hi"}])
    data = jsonl(
        good,
        good,
        good | {"custom_id": "b", "url": "/v1/embeddings"},
        good | {"custom_id": "c", "body": good["body"] | {"model": "nobody"}},
        good | {"custom_id": "d", "body": good["body"] | {"stream": True}},
    )
    done = await ended(strict, (await submitted(strict, data)).id)
    assert done.status == "failed"
    assert done.failed_at is not None
    assert done.output_file_id is done.error_file_id is None
    assert done.errors is not None
    assert [(e.line, e.code, e.param) for e in done.errors.data or ()] == [
        (2, "duplicate_custom_id", "custom_id"),
        (3, "mismatched_endpoint", "url"),
        (4, "model_not_found", "body.model"),
        (5, "unsupported_parameter", "body.stream"),
    ]
    assert (
        books.rows("select task_id from tasks where organisation_id = %s", caller.organisation_id)
        == []
    )

    file = await uploaded(sdk, jsonl(good))
    bad: list[tuple[dict[str, Any], str]] = [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "a while"}, "completion_window"),
        ({"completion_window": "8d"}, "completion_window"),
        ({"input_file_id": "file-" + "0" * 32}, "input_file_id"),
        ({"input_file_id": "x"}, "input_file_id"),
        ({"metadata": {"a": 1}}, "metadata.a"),
        (
            {"output_expires_after": {"anchor": "x", "seconds": 3_600}},
            "output_expires_after.anchor",
        ),
    ]
    for fields, param in bad:
        asked: Any = {
            "input_file_id": file.id,
            "endpoint": CHAT,
            "completion_window": "24h",
        } | fields
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.batches.create(**asked)
        assert refused.value.param == param
    asked = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "1h"}
    once = {"Idempotency-Key": "once"}
    first = await sdk.batches.create(**asked, extra_headers=once)
    assert (await sdk.batches.create(**asked, extra_headers=once)).id == first.id
    with pytest.raises(openai.UnprocessableEntityError):
        await sdk.batches.create(**(asked | {"completion_window": "2h"}), extra_headers=once)
    await ended(sdk, first.id)


async def test_a_line_waits_for_a_limit_and_a_spent_budget_fails_it_or_is_waited_for(
    stack: RunningStack, books: Books, poor: Callable[[Decimal], Caller]
) -> None:
    caller = Caller.made(stack.admin_url, stack.state().urls["api"])
    alone = {"scope": "key", "scope_id": str(caller.key_id), "concurrent_calls": 1}
    assert (await caller.http.post("/v1/limits", json=alone)).status_code == 200
    async with client_of(caller) as client:
        questions = [say(f"{number}") for number in range(5)]
        done = await ended(client, (await submitted(client, lines(questions))).id)
        assert await read(client, done.error_file_id) == {}
        assert len(await read(client, done.output_file_id)) == 5
        books.assert_nothing_held(caller.organisation_id)
        # The key of a batch that is switched off makes no further line.
        long = [say(words(30), pace_ms=20) for _ in range(6)]
        batch = await submitted(client, lines(long))
        begun = await ended(client, batch.id, lines=1)
        assert begun.usage is not None
        assert begun.usage.output_tokens >= 30
        set_key_enabled(stack.admin_url, caller.organisation_id, caller.key_id, enabled=False)
        other = create_key(stack.admin_url, caller.organisation_id, _team(books, caller), "other")
        async with client_of(
            Caller(caller.base_url, other.token, caller.organisation_id, other.key_id)
        ) as owner:
            done = await ended(owner, batch.id)
            assert done.status == "completed"
            codes = {
                each["response"]["body"]["error"]["code"]
                for each in (await read(owner, done.error_file_id)).values()
            }
            assert codes == {"key_refused"}
    await caller.http.aclose()

    # One call may cost this much; there is room for three.
    worst = Decimal("0.000010") * 3
    caller = poor(worst)
    async with client_of(caller) as client:
        questions = [f"{number} " + say("ok") for number in range(8)]
        data = lines(questions, max_completion_tokens=8)
        done = await ended(client, (await submitted(client, data)).id)
        assert done.status == "completed"
        errors = await read(client, done.error_file_id)
        assert {each["response"]["status_code"] for each in errors.values()} == {402}
        spent = books.rows(
            "select coalesce(sum(billed_usd), 0) as usd from model_calls"
            " where organisation_id = %s",
            caller.organisation_id,
        )[0]["usd"]
        assert spent <= worst
        headers: Any = {"X-Overline-On-Budget": "wait"}
        batch = await submitted(client, data, extra_headers=headers)
        await asyncio.sleep(1.5)
        waits = await client.batches.retrieve(batch.id)
        assert waits.status == "in_progress"
        with psycopg.connect(stack.admin_url) as connection:
            connection.execute(
                "update budgets set cap_usd = 1 where organisation_id = %s and scope_id = %s",
                (caller.organisation_id, caller.key_id),
            )
        done = await ended(client, batch.id)
        assert done.request_counts is not None
        assert (done.status, done.request_counts.completed) == ("completed", 8)
        books.assert_nothing_held(caller.organisation_id)
    await caller.http.aclose()


def _team(books: Books, caller: Caller) -> Any:
    (row,) = books.rows("select team_id from api_keys where key_id = %s", caller.key_id)
    return row["team_id"]


async def test_cancelled_or_expired_what_was_answered_stays_and_the_rest_is_said(
    sdk: openai.AsyncOpenAI, caller: Caller, books: Books, stack: RunningStack
) -> None:
    # More than are worked on at a time.
    slow = [say(words(40), pace_ms=20) for _ in range(60)]
    batch = await submitted(sdk, lines(slow))
    await ended(sdk, batch.id, lines=1)
    with pytest.raises(openai.ConflictError) as refused:
        await sdk.files.delete(batch.input_file_id)
    assert refused.value.code == "file_in_use"
    assert (await sdk.batches.cancel(batch.id)).status == "cancelling"
    assert (await sdk.batches.cancel(batch.id)).id == batch.id
    late = await submitted(sdk, lines(slow), completion_window="2s")
    for wanted, status, code in (
        (batch.id, "cancelled", "batch_cancelled"),
        (late.id, "expired", "batch_expired"),
    ):
        done = await ended(sdk, wanted)
        assert done.status == status
        assert getattr(done, f"{status}_at") is not None
        answers = await read(sdk, done.output_file_id)
        errors = await read(sdk, done.error_file_id)
        assert set(answers) | set(errors) == {f"r{number}" for number in range(60)}
        assert not set(answers) & set(errors)
        assert {each["error"]["code"] for each in errors.values()} == {code}
        assert all(each["response"] is None for each in errors.values())
        assert answers
        made = books.rows(
            "select count(*) as n from tasks where organisation_id = %s"
            " and idempotency_key like %s",
            caller.organisation_id,
            f"batch:{_id(wanted)}:%",
        )[0]["n"]
        assert made == len(answers)
        await assert_replays(stack, [f"batch-{_id(wanted)}"])
    books.assert_nothing_held(caller.organisation_id)
    assert (await sdk.files.delete(batch.input_file_id)).deleted


async def test_a_line_that_is_cancelled_ends_alone_and_is_paid_for(
    sdk: openai.AsyncOpenAI, caller: Caller, books: Books
) -> None:
    batch = await submitted(sdk, lines([say(words(600), pace_ms=20), say("short")]))
    await ended(sdk, batch.id, lines=1)
    (task,) = books.rows(
        "select task_id from tasks where idempotency_key = %s", f"batch:{_id(batch.id)}:1:0"
    )
    cancelled = await caller.http.post(f"/v1/tasks/{task['task_id']}/cancel")
    assert cancelled.json()["requested"] is True, cancelled.text
    done = await ended(sdk, batch.id, limit_s=30)
    assert done.status == "completed"
    assert list(await read(sdk, done.output_file_id)) == ["r1"]
    (line,) = (await read(sdk, done.error_file_id)).values()
    assert line["response"] is None
    assert line["error"]["code"] == "request_cancelled"
    made = books.rows(
        "select task_id, status from tasks where organisation_id = %s order by idempotency_key",
        caller.organisation_id,
    )
    assert [each["status"] for each in made] == ["cancelled", "succeeded"]
    billed = [row["billed_usd"] for row in books.ledger(*(str(each["task_id"]) for each in made))]
    extra: Any = done
    assert Decimal(extra.cost_usd) == sum(billed)
    assert min(billed) > 0
    books.assert_nothing_held(caller.organisation_id)


async def test_what_is_in_a_file_is_for_keys_of_its_team(
    sdk: openai.AsyncOpenAI, caller: Caller, stack: RunningStack
) -> None:
    done = await ended(sdk, (await submitted(sdk, lines([say("ours")]))).id)
    team = create_team(stack.admin_url, caller.organisation_id, "another")
    key = create_key(stack.admin_url, caller.organisation_id, team, "another")
    theirs = Caller(caller.base_url, key.token, caller.organisation_id, key.key_id)
    async with client_of(theirs) as other:
        for file_id in (done.input_file_id, done.output_file_id):
            assert file_id is not None
            assert (await other.files.retrieve(file_id)).id == file_id
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await other.files.content(file_id)
            assert refused.value.code == "other_team"
        with pytest.raises(openai.BadRequestError) as wrong:
            await other.batches.create(
                input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h"
            )
        assert wrong.value.code == "file_not_found"
    await theirs.http.aclose()


async def test_the_command_line_submits_waits_and_writes_the_results(
    stack: RunningStack, tmp_path: Path
) -> None:
    requests, out, errors = (tmp_path / name for name in ("in.jsonl", "out", "errors"))
    requests.write_bytes(lines([say("one"), say("two"), say("x", unheard_of=1)]))
    made = await asyncio.to_thread(
        stack.json, "batch", "submit", str(requests), "-o", str(out), "--errors", str(errors)
    )
    assert (made["status"], made["request_counts"]["failed"]) == ("completed", 1)
    assert len(out.read_text().splitlines()) == 2
    assert len(errors.read_text().splitlines()) == 1
    assert made["id"] in [each["id"] for each in stack.json("batch", "list")]
    assert stack.json("batch", "show", made["id"])["status"] == "completed"
    printed = stack.overline("batch", "results", made["id"])
    assert printed.stdout == out.read_text()
    assert stack.overline("batch", "cancel", made["id"]).returncode == 1
    requests.write_bytes(b"{\n")
    refused = stack.overline("batch", "submit", str(requests), "--endpoint", CHAT)
    assert refused.returncode == 1
    assert "Line 1" in refused.stderr


@pytest.mark.timeout(400)
async def test_whatever_dies_each_line_is_answered_and_billed_once(
    own_stack: Callable[..., RunningStack],
) -> None:
    stack = own_stack(OVERLINE_WORKERS="2", OVERLINE_BATCH_RUN_SLICES="6")
    stack.up()
    caller = Caller.made(stack.admin_url, stack.state().urls["api"])
    count = 60
    questions = [f"{number} " + say(words(8), pace_ms=25) for number in range(count)]
    async with client_of(caller) as client:
        batch = await submitted(client, lines(questions))
        for fewest, victim in ((4, "worker-1"), (12, "worker-2"), (20, "triton"), (28, "api")):
            await ended(client, batch.id, lines=fewest)
            stack.kill(victim)
        await ended(client, batch.id, lines=40)
        for victim in ("worker-1", "worker-2", "postgres"):
            stack.kill(victim)
        done = await ended(client, batch.id, limit_s=250)
        assert done.status == "completed"
        answers = await read(client, done.output_file_id)
        assert list(answers) == [f"r{number}" for number in range(count)]
        assert {
            each["response"]["body"]["choices"][0]["message"]["content"]
            for each in answers.values()
        } == {words(8)}
        async with TritonClient(stack.settings.triton_urls[0]) as engine:
            books = Books(stack.admin_url, engine)
            billed = books.rows(
                "select task_id, count(*) as n from model_calls where organisation_id = %s"
                " and outcome = 'succeeded' group by task_id",
                caller.organisation_id,
            )
            assert {str(row["task_id"]) for row in billed} >= {
                each["response"]["request_id"] for each in answers.values()
            }
            made = books.rows(
                "select split_part(idempotency_key, ':', 3) as line, count(*) as n from tasks"
                " where organisation_id = %s and status = 'succeeded' group by 1",
                caller.organisation_id,
            )
            assert len(made) == count
            assert {row["n"] for row in made} == {1}
            books.assert_nothing_held(caller.organisation_id)
        settings = stack.settings
        temporal = await Client.connect(settings.temporal_address, **connect_kwargs(settings))
        assert len(await runs_of(temporal, f"batch-{_id(batch.id)}")) > 1
        await assert_replays(stack, [f"batch-{_id(batch.id)}"])
    await caller.http.aclose()
