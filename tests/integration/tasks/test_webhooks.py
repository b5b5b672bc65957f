"""Somebody is told of a task's end: signed, once an end, whatever dies on the way."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from temporalio.client import Client
from uuid_utils.compat import uuid7

from tests.chaos.victims import kill
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller, Refused, say, words
from tests.integration.tasks.histories import assert_replays
from tests.integration.tasks.receiver import Receiver
from tests.integration.tasks.services import Sink
from workflows.client import connect_kwargs

MODEL = "scripted"


@pytest.fixture(scope="module")
def receiver(outside_ports: tuple[int, int]) -> Iterator[Receiver]:
    with Receiver(outside_ports[0]) as running:
        yield running


async def deliveries(
    caller: Caller,
    task_id: str,
    holds: Callable[[list[dict[str, Any]]], bool] = lambda found: (
        bool(found) and all(each["state"] != "pending" for each in found)
    ),
    *,
    limit_s: float = 60,
) -> list[dict[str, Any]]:
    """Read a task's deliveries, once they are as wished; by default when all have ended."""
    deadline = time.monotonic() + limit_s
    while True:
        answer = await caller.request("GET", f"/v1/tasks/{task_id}/webhooks")
        found: list[dict[str, Any]] = answer.json()["deliveries"]
        if holds(found):
            return found
        assert time.monotonic() < deadline, found
        await asyncio.sleep(0.05)


async def ended(caller: Caller, url: str, question: str = say("Done."), **webhook: Any) -> str:
    task_id = await caller.submit(
        question, model=MODEL, cache="off", webhook={"url": url, **webhook}
    )
    await caller.ended(task_id)
    return task_id


async def test_the_end_of_a_task_is_told_and_says_what_came_of_it(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    task_id = await ended(caller, receiver.url("ok?x=1"))
    (delivery,) = await deliveries(caller, task_id)
    assert (delivery["state"], delivery["attempts"], delivery["last_status"]) == (
        "delivered",
        1,
        204,
    )
    (message,) = receiver.of(task_id)
    task = await caller.task(task_id)
    assert message.path == "/ok?x=1"
    assert message.headers["webhook-id"] == delivery["id"]
    assert abs(int(message.headers["webhook-timestamp"]) - time.time()) < 60
    assert "webhook-signature" not in message.headers
    assert "authorization" not in message.headers
    assert message.body["type"] == "task.succeeded"
    said = message.body["data"]
    assert said["status"] == "succeeded"
    assert said["answer"] == task["answer"] == "Done."
    for name in ("cost_usd", "waste_usd", "prompt_tokens", "completion_tokens", "tags", "user"):
        assert said[name] == task[name]
    assert said["error"] is None
    assert said["link"].endswith(f"/v1/tasks/{task_id}")
    await assert_replays(stack, [f"webhook-{delivery['id']}"])


async def test_every_way_to_end_is_told_and_only_those_that_were_asked_for(
    caller: Caller, receiver: Receiver
) -> None:
    failed = await ended(caller, receiver.url("ok"), say("x", unheard_of=1))
    (delivery,) = await deliveries(caller, failed)
    assert delivery["event"] == "task.failed"
    (message,) = receiver.of(failed)
    assert message.body["data"]["error"]["code"] == "OVL-1007"
    long = say(words(400), pace_ms=20)
    cancelled = await caller.submit(long, model=MODEL, webhook={"url": receiver.url("ok")})
    async with caller.watch(cancelled) as watcher:
        await watcher.until(lambda seen: len(seen.text()) > 20)
        await caller.cancel(cancelled)
        await watcher.to_end()
    (delivery,) = await deliveries(caller, cancelled)
    assert delivery["event"] == "task.cancelled"
    silent = await ended(caller, receiver.url("ok"), events=["task.failed"])
    nobody = await caller.answered(say("Done."), model=MODEL, cache="off")
    for task_id in (silent, nobody["id"]):
        assert await deliveries(caller, task_id, lambda found: True) == []
        assert receiver.of(task_id) == []


async def test_a_receiver_that_fails_is_told_again_under_the_same_id(
    caller: Caller, receiver: Receiver
) -> None:
    task_id = await ended(caller, receiver.url("third"))
    (between,) = await deliveries(caller, task_id, lambda found: found[0]["last_status"] == 500)
    assert between["state"] == "pending"
    assert between["last_error"] == "it answered 500"
    assert between["next_attempt_at"] is not None
    (delivery,) = await deliveries(caller, task_id)
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 3)
    assert delivery["last_error"] is None
    sent = receiver.of(task_id)
    assert {each.headers["webhook-id"] for each in sent} == {delivery["id"]}
    assert len({each.raw for each in sent}) == 1
    assert len(sent) == 3


async def test_a_receiver_that_wants_no_more_or_wants_it_later_is_heard(
    caller: Caller, receiver: Receiver
) -> None:
    gone = await ended(caller, receiver.url("gone"))
    (delivery,) = await deliveries(caller, gone)
    assert (delivery["state"], delivery["attempts"]) == ("gone", 1)
    later = await ended(caller, receiver.url("later"))
    (delivery,) = await deliveries(caller, later)
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)
    first, second = receiver.of(later)
    waited = int(second.headers["webhook-timestamp"]) - int(first.headers["webhook-timestamp"])
    assert waited >= 2


async def test_what_may_not_be_reached_is_not(caller: Caller, receiver: Receiver) -> None:
    with Sink() as sink:
        private = await ended(caller, f"http://127.0.0.1:{sink.port}/")
        receiver.elsewhere = f"http://127.0.0.1:{sink.port}/"
        redirected = await ended(caller, receiver.url("away"))
        (delivery,) = await deliveries(caller, private)
        assert (delivery["state"], delivery["last_status"]) == ("failed", None)
        assert "is not reached" in delivery["last_error"]
        (delivery,) = await deliveries(caller, redirected, lambda found: found[0]["attempts"] > 1)
        assert delivery["state"] == "pending"
        assert delivery["last_status"] == 302
        assert "redirect (302), and none is followed" in delivery["last_error"]
        assert sink.connections == 0


@pytest.mark.parametrize(
    "webhook",
    [
        {"url": "ftp://example.com/"},
        {"url": "https://user:word@example.com/"},
        {"url": "https:///path"},
        {"url": "https://example.com/ x"},
        {"url": "https://example.com/", "events": []},
        {"url": "https://example.com/", "events": ["task.paused"]},
        {"url": "https://example.com/", "secret": "no/slash"},
        {"url": "https://example.com/", "key": "x"},
        {},
    ],
)
async def test_what_is_no_webhook_is_refused(caller: Caller, webhook: dict[str, Any]) -> None:
    with pytest.raises(Refused) as refused:
        await caller.submit(say("x"), model=MODEL, webhook=webhook)
    assert refused.value.status == 422


async def test_it_is_signed_with_every_secret_that_is_active(
    caller: Caller, receiver: Receiver, stack: RunningStack, short_folder: Path
) -> None:
    raw, old = os.urandom(24), f"canary-{uuid4().hex}"
    encoded = "whsec_" + base64.b64encode(raw).decode()
    secret = {
        "value": encoded,
        "previous": [old],
        "hosts": [f"127.0.0.1:{receiver.port}"],
        "organisations": [str(caller.organisation_id)],
    }
    others = {**secret, "organisations": [str(uuid4())]}
    file = short_folder / "tool-secrets.json"
    file.write_text(json.dumps({"HOOK": secret, "OTHERS": others}))
    task_id = await ended(caller, receiver.url("ok"), secret="HOOK")
    await deliveries(caller, task_id)
    (message,) = receiver.of(task_id)
    signed = (
        f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode()
        + message.raw
    )
    expected = [
        "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        for key in (raw, old.encode())
    ]
    assert message.headers["webhook-signature"].split(" ") == expected

    # Somebody else's secret signs nothing, and nothing is sent until there is one.
    theirs = await ended(caller, receiver.url("ok"), secret="OTHERS")
    (delivery,) = await deliveries(caller, theirs, lambda found: bool(found[0]["last_error"]))
    assert delivery["last_error"] == f"secret 'OTHERS' is not there for 127.0.0.1:{receiver.port}"
    assert receiver.of(theirs) == []
    file.write_text(json.dumps({"OTHERS": secret}))
    (delivery,) = await deliveries(caller, theirs)
    assert delivery["state"] == "delivered"
    for log in stack.folder.glob("logs/*"):
        text = log.read_text(errors="replace")
        assert old not in text
        assert encoded not in text


async def _worker_of(stack: RunningStack, workflow_id: str) -> int:
    client = await Client.connect(stack.settings.temporal_address)
    description = await client.get_workflow_handle(workflow_id).describe()
    (pending,) = description.raw_description.pending_activities
    return int(pending.last_worker_identity.partition("@")[0])


async def test_a_worker_killed_between_the_post_and_its_note_tells_it_again_under_the_same_id(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    receiver.hold.set()
    task_id = await ended(caller, receiver.url("held"))
    while not receiver.of(task_id):
        await asyncio.sleep(0.02)
    (delivery,) = await deliveries(caller, task_id, lambda found: bool(found))
    kill([await _worker_of(stack, f"webhook-{delivery['id']}")])
    receiver.hold.clear()
    (delivery,) = await deliveries(caller, task_id)
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)
    first, second = receiver.of(task_id)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == delivery["id"]
    assert first.raw == second.raw


def _end_it_and_die(stack: RunningStack, caller: Caller, url: str) -> UUID:
    """End a task as a process does that dies before it can start the delivery."""
    task_id = uuid7()
    asked = {"input": "?", "webhook": {"url": url}}
    with psycopg.connect(stack.admin_url) as connection:
        connection.execute(
            "select set_config('overline.organisation_id', %s, true)",
            (str(caller.organisation_id),),
        )
        connection.execute(
            "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, run_id,"
            " request_digest, route, input, worst_case_usd)"
            " select organisation_id, %s, team_id, key_id, 'task-' || %s, 'r', 'd', 'default',"
            " %s, 1 from api_keys where key_id = %s",
            (task_id, str(task_id), json.dumps(asked), caller.key_id),
        )
        connection.execute(
            "select finish_task(%s, %s, 'cancelled', null, null)",
            (caller.organisation_id, task_id),
        )
    return task_id


async def test_whoever_dies_before_the_start_is_made_up_for(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    task_id = _end_it_and_die(stack, caller, receiver.url("ok"))
    stack.wait_until_restarted("api", stack.kill("api"))
    (delivery,) = await deliveries(caller, str(task_id))
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 1)
    (message,) = receiver.of(str(task_id))
    assert message.body["type"] == "task.cancelled"


async def test_an_end_that_is_undone_is_not_told(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    """The row is filed in the transaction that ends the task, and goes with it."""
    task_id = uuid7()
    with psycopg.connect(stack.admin_url) as connection, connection.transaction() as undone:
        connection.execute(
            "insert into tasks (organisation_id, task_id, team_id, key_id, workflow_id, run_id,"
            " request_digest, route, input, worst_case_usd, finished_at, status)"
            " select organisation_id, %s, team_id, key_id, 'w', 'r', 'd', 'default', %s, 1, null,"
            " 'running' from api_keys where key_id = %s",
            (task_id, json.dumps({"webhook": {"url": receiver.url("ok")}}), caller.key_id),
        )
        connection.execute(
            "update tasks set status = 'failed', finished_at = now() where task_id = %s",
            (task_id,),
        )
        filed = connection.execute(
            "select count(*) from webhook_deliveries where task_id = %s", (task_id,)
        ).fetchone()
        assert filed == (1,)
        raise psycopg.Rollback(undone)
    await asyncio.sleep(0.5)
    assert receiver.of(str(task_id)) == []


async def test_a_slow_receiver_holds_up_nobody_and_one_that_never_answers_is_told_again(
    caller: Caller, receiver: Receiver
) -> None:
    receiver.hold.set()
    slow = [
        await caller.submit(
            say("Done."), model=MODEL, cache="off", webhook={"url": receiver.url("held")}
        )
        for _ in range(5)
    ]
    for task_id in slow:
        await caller.ended(task_id)
    quick = await ended(caller, receiver.url("ok"))
    (delivery,) = await deliveries(caller, quick)
    assert delivery["state"] == "delivered"
    receiver.hold.clear()
    for task_id in slow:
        (delivery,) = await deliveries(caller, task_id)
        assert delivery["state"] == "delivered"


async def test_one_that_has_ended_is_delivered_once_more_when_asked(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    task_id = await ended(caller, receiver.url("gone"))
    (delivery,) = await deliveries(caller, task_id)
    path = f"/v1/tasks/{task_id}/webhooks/{delivery['id']}/redeliver"
    again = (await caller.request("POST", path)).json()
    assert again["state"] == "pending"
    (delivery,) = await deliveries(caller, task_id, lambda found: found[0]["attempts"] == 2)
    assert [each.headers["webhook-id"] for each in receiver.of(task_id)] == [delivery["id"]] * 2
    with pytest.raises(Refused) as refused:
        await caller.request("POST", path.replace(delivery["id"], str(uuid4())))
    assert refused.value.status == 404
    client = await Client.connect(stack.settings.temporal_address, **connect_kwargs(stack.settings))
    handle = client.get_workflow_handle(f"webhook-{delivery['id']}")
    assert (await handle.result())["state"] == "gone"


async def test_an_agent_names_who_is_told_and_its_tasks_do(
    caller: Caller, receiver: Receiver
) -> None:
    spec = {"name": "told", "model": MODEL, "webhook": {"url": receiver.url("ok")}}
    await caller.request("POST", "/v1/agents", json=spec)
    task = await caller.answered(say("Done."), agent="told", cache="off")
    (delivery,) = await deliveries(caller, task["id"])
    assert delivery["state"] == "delivered"
    quiet = await caller.answered(say("Done."), agent="told", cache="off", webhook=None)
    assert await deliveries(caller, quiet["id"], lambda found: True) == []


async def test_a_soft_budget_that_is_passed_is_told_once_a_period(
    caller: Caller, receiver: Receiver, stack: RunningStack
) -> None:
    rule = {"scope": "user", "subject": "*", "period": "day", "hard": False, "cap_usd": "0"}
    wanted = {**rule, "webhook": {"url": receiver.url("ok")}}
    made = (await caller.request("POST", "/v1/budgets", json=wanted)).json()
    budget_id = made["budgets"][0]["id"]
    body = {"model": MODEL, "messages": [{"role": "user", "content": say("x")}]}
    # A second process may warn at the same moment: it is one warning.
    answers = await asyncio.gather(
        *(
            caller.request("POST", "/v1/chat/completions", json=body | {"user": user})
            for user in ("ada", "ada", "ada", "grace")
        )
    )
    for answer in answers:
        assert answer.headers["x-overline-budget-warning"].startswith("user;period=")
        assert answer.headers["x-overline-budget-warning"].endswith(";limit_usd=0.000000000")
    quiet = await caller.request("POST", "/v1/chat/completions", json=body)
    assert "x-overline-budget-warning" not in quiet.headers
    path, deadline = f"/v1/budgets/{budget_id}", time.monotonic() + 60
    while True:
        read = (await caller.request("GET", path)).json()
        if [each["state"] for each in read["told"]] == ["delivered"] * 2:
            break
        assert time.monotonic() < deadline, read["told"]
        await asyncio.sleep(0.1)
    assert read["budgets"][0]["webhook_url"] == receiver.url("ok")
    messages = receiver.about("budget_id", budget_id)
    assert sorted(each.body["data"]["subject"] for each in messages) == ["ada", "grace"]
    for message in messages:
        assert message.body["type"] == "budget.warning"
        said = message.body["data"]
        assert (said["scope"], said["period"], said["limit_usd"]) == ("user", "day", "0.000000000")
        assert said["link"].endswith(path)
        assert message.headers["webhook-id"] in {each["id"] for each in read["told"]}
    with pytest.raises(Refused) as refused:
        await caller.request("POST", "/v1/budgets", json=wanted | {"hard": True})
    assert refused.value.status == 422
