"""Safety policies on the OpenAI surface: the caller is answered, and nobody else ever sees it."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import openai

from store import audit
from store.database import Database
from store.provision import create_key, create_team
from tests.integration.openai_surface.conftest import Replicas
from tests.integration.openai_surface.written import assert_nowhere
from tests.integration.running import OVERLINE, RunningStack
from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, say
from tests.upstream import Served

MAIL: Any = {"id": "mail", "kind": "pii", "types": ["EMAIL_ADDRESS"], "action": "redact"}
FLAGGED = '[[call text="{\\"flagged\\": true}"]]'
FINE = '[[call text="{\\"flagged\\": false}"]]'


def canary() -> str:
    """An e-mail address that is nowhere else."""
    return f"canary{uuid4().hex}@example.com"


def asks(text: str, **fields: Any) -> dict[str, Any]:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}], **fields}


def blue(action: str, **fields: Any) -> dict[str, Any]:
    """A rule about an answer, so that a prompt may say what the model shall say."""
    return {"id": "blue", "kind": "deny_list", "words": ["Bluebird"], "on": ["output"],
            "action": action, **fields}  # fmt: skip


async def hold(caller: Caller, *rules: dict[str, Any], team: str = "", **fields: Any) -> int:
    """Set the caller's policy."""
    path = f"/v1/policy?team={team}" if team else "/v1/policy"
    made = await caller.http.put(path, json={"rules": list(rules), **fields})
    assert made.status_code == 200, made.text
    version: int = made.json()["version"]
    return version


async def post(caller: Caller, path: str, body: Any, **headers: str) -> httpx2.Response:
    return await caller.http.post(f"/v1/{path}", json=body, headers=headers)


async def streamed(client: openai.AsyncOpenAI, **asked: Any) -> tuple[str, str | None, str]:
    """What a stream says, how it ends, and its id."""
    said, reason, own_id = "", None, ""
    async for chunk in await client.chat.completions.create(stream=True, **asked):
        own_id = chunk.id
        for choice in chunk.choices:
            said += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return said, reason, own_id


async def test_what_is_taken_out_comes_back_for_its_caller_and_is_nowhere_else(
    stack: RunningStack,
    upstream: Served,
    caller: Caller,
    sdk: openai.AsyncOpenAI,
    books: Books,
) -> None:
    ada, eve, bob = canary(), canary(), canary()
    control = f"control{uuid4().hex}"
    await hold(caller, MAIL)

    # Not streamed; repeated; read by its id.
    asked = asks(f"{control} " + say(f"I wrote to {ada} and {bob}, twice to {ada}."))
    first = await post(caller, "chat/completions", asked, **{"Idempotency-Key": "k"})
    assert first.status_code == 200, first.text
    assert first.headers["x-overline-safety"] == "redact"
    said = first.json()["choices"][0]["message"]["content"]
    assert said == f"I wrote to {ada} and {bob}, twice to {ada}."
    again = await post(caller, "chat/completions", asked, **{"Idempotency-Key": "k"})
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["x-overline-safety"] == "redact"
    assert again.json()["choices"] == first.json()["choices"]
    key = {"Idempotency-Key": "k"}
    assert (await streamed(sdk, **asked, extra_headers=key))[0] == said
    read = await caller.http.get(f"/v1/chat/completions/{first.json()['id']}")
    assert read.json()["choices"] == first.json()["choices"]
    # Another team of the organisation may read that there was an answer, and not what was in it.
    team = create_team(stack.admin_url, caller.organisation_id, f"t{uuid4()}")
    other = create_key(stack.admin_url, caller.organisation_id, team, "key")
    theirs = await caller.http.get(
        f"/v1/chat/completions/{first.json()['id']}",
        headers={"Authorization": f"Bearer {other.token}"},
    )
    assert theirs.json()["choices"][0]["message"]["content"] == (
        "I wrote to <EMAIL_ADDRESS_1> and <EMAIL_ADDRESS_2>, twice to <EMAIL_ADDRESS_1>."
    )

    # Streamed, token by token, through the held-back window.
    slow = asks(say(f"Dear {eve}: it is so. Yours, {ada}", pace_ms=1))
    assert (await streamed(sdk, **slow))[:2] == (f"Dear {eve}: it is so. Yours, {ada}", "stop")

    # An equal question of another address is the same question, answered with its own address.
    greedy = [
        await post(caller, "chat/completions", asks(say(f"To {who}."), temperature=0))
        for who in (ada, eve)
    ]
    assert [each.headers["x-overline-cache"] for each in greedy] == ["miss", "hit"]
    for answer, who in zip(greedy, (ada, eve), strict=True):
        assert answer.json()["choices"][0]["message"]["content"] == f"To {who}."
        kept = await caller.http.get(f"/v1/chat/completions/{answer.json()['id']}")
        assert kept.json()["choices"] == answer.json()["choices"]
    assert greedy[1].headers["x-overline-cost-usd"] == "0"
    tasks = {each.headers["x-overline-task"] for each in greedy}

    # Responses: instructions, items, what went before, tools' results.
    response = await sdk.responses.create(
        model="scripted",
        instructions=f"You know {bob}.",
        input=[
            {"role": "user", "content": f"{say(f'Ask {ada}')} now"},
            {
                "type": "function_call",
                "call_id": "c",
                "name": "f",
                "arguments": f'{{"to": "{eve}"}}',
            },
            {"type": "function_call_output", "call_id": "c", "output": f"sent to {eve}"},
        ],
    )
    assert response.output_text == f"Ask {ada}"
    assert response.instructions == f"You know {bob}."
    assert (await sdk.responses.retrieve(response.id)).output_text == f"Ask {ada}"
    after = await sdk.responses.create(
        model="scripted", input=say(f"No, {eve}", turn=2), previous_response_id=response.id
    )
    assert after.output_text in (f"No, {eve}", f"Ask {ada}")

    # Functions: what is put back into arguments stays JSON.
    weather: Any = {
        "type": "function",
        "function": {
            "name": "mail",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string"}},
                "required": ["to"],
            },
        },
    }
    choice = json.dumps(json.dumps({"tool": "mail", "arguments": {"to": ada}}))
    called = await sdk.chat.completions.create(
        **asks(f"[[call text={choice}]]", tools=[weather], tool_choice="required")
    )
    (call,) = called.choices[0].message.tool_calls or ()
    assert json.loads(call.function.arguments) == {"to": ada}  # type: ignore[union-attr]

    # An upstream is not told, whatever it stands in, and vectors are made of what is left.
    told: Any = json.loads(json.dumps(weather))
    told["function"]["description"] = f"writes to {eve}"
    elsewhere = await sdk.chat.completions.create(
        model="mock",
        messages=[{"role": "user", "name": ada, "content": say(f"Hi {bob}")}],
        tools=[told],
        tool_choice="none",
    )
    assert elsewhere.choices[0].message.content == f"Hi {bob}"
    last = json.dumps(upstream.stats.last_body)
    assert all(f"<EMAIL_ADDRESS_{number}>" in last for number in (1, 2, 3))
    assert "@example.com" not in last
    embedded = await post(
        caller, "embeddings", {"model": "all-minilm-l6-v2", "input": [f"to {ada}", "plain"]}
    )
    assert (embedded.status_code, embedded.headers["x-overline-safety"]) == (200, "redact")

    await assert_nowhere(stack, ada, eve, bob, control=control)
    digests = books.rows(
        "select idempotency_key, request_digest as said from tasks where organisation_id = %s",
        caller.organisation_id,
    )
    assert {bool(row["said"]) == (row["idempotency_key"] is not None) for row in digests} == {True}
    db = await Database.open(stack.admin_url)
    try:
        assert await audit.verify(db, caller.organisation_id) is None
        redacted = await audit.find(db, caller.organisation_id, action="safety.redact")
    finally:
        await db.close()
    assert {entry.subject for entry in redacted} >= tasks
    assert redacted[-1].detail["findings"][0]["rule"] == "mail"


async def test_an_answer_is_cut_off_and_paid_for_as_far_as_it_was_made(
    stack: RunningStack, caller: Caller, sdk: openai.AsyncOpenAI, books: Books
) -> None:
    await hold(caller, blue("block"))
    text = "All is well here, I say. " * 12 + "The Bluebird flies. " + "And on it goes. " * 400
    said, reason, own_id = await streamed(sdk, **asks(say(text, pace_ms=1)))
    assert reason == "content_filter"
    assert said == text[: len(said)]
    assert text.index("Bluebird") - 80 < len(said) <= text.index("Bluebird")
    kept = await sdk.chat.completions.retrieve(own_id)
    assert (kept.choices[0].message.content, kept.choices[0].finish_reason) == (said, reason)
    task = own_id.removeprefix("chatcmpl-")
    (row,) = books.ledger(task)
    assert (row["outcome"], row["usage_source"]) == ("succeeded", "engine")
    assert len(said) <= row["output_tokens"] < len(text) / 2
    assert row["billed_usd"] > 0
    await books.assert_attempts_equal([row])
    books.assert_nothing_held(caller.organisation_id)
    (decision,) = books.rows(
        "select * from safety_decisions where organisation_id = %s", caller.organisation_id
    )
    assert (decision["outcome"], decision["place"]) == ("block", "output")
    (chunks,) = books.rows(
        "select string_agg(text, '' order by seq) as text from token_chunks where task_id = %s",
        UUID(hex=task),
    )
    assert chunks["text"] == said

    # An upstream that is cut off, and one whose answer is whole.
    for stream in (True, False):
        asked = {**asks(say("x " * 40 + "Bluebird " + "y " * 400)), "model": "mock-drip"}
        answer = await post(caller, "chat/completions", {**asked, "stream": stream})
        assert "content_filter" in answer.text
        assert "Bluebird" not in answer.text

    # What is taken out of an answer is out for good.
    await hold(caller, blue("redact"))
    answer = await post(caller, "chat/completions", asks(say("The Bluebird flies.")))
    assert answer.headers["x-overline-safety"] == "redact"
    assert answer.json()["choices"][0]["message"]["content"] == "The [DENIED] flies."
    refused = await post(caller, "chat/completions", asks("hi", logprobs=True))
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "logprobs")

    # JSON by what it says, and not by how it is written.
    bound: Any = {"type": "json_object"}
    written = json.dumps('{"bird": "Blue\\u0062ird", "n": 1}')
    answer = await post(
        caller, "chat/completions", asks(f"[[call text={written}]]", response_format=bound)
    )
    said = answer.json()["choices"][0]["message"]["content"]
    assert json.loads(said) == {"bird": "[DENIED]", "n": 1}

    # A dry run finds everything and changes nothing.
    await hold(caller, {**MAIL, "action": "block"}, blue("block"), mode="dry_run")
    answer = await post(caller, "chat/completions", asks(say("a@example.com: Bluebird")))
    assert answer.headers["x-overline-safety"] == "dry_run"
    assert answer.json()["choices"][0]["message"]["content"] == "a@example.com: Bluebird"
    modes = books.rows(
        "select place, outcome from safety_decisions where task_id = %s and mode = 'dry_run'",
        UUID(answer.headers["x-overline-task"]),
    )
    assert {(row["place"], row["outcome"]) for row in modes} == {
        ("input", "allow"),
        ("output", "allow"),
    }


async def test_what_may_not_begin_costs_nothing_and_a_change_holds_at_once_everywhere(
    stack: RunningStack, caller: Caller, books: Books, replicas: Replicas
) -> None:
    mail = canary()
    asked = asks(f"{mail} {say('ok')}")
    doors = [caller.base_url, *replicas.urls]
    async with httpx2.AsyncClient(
        headers={"Authorization": f"Bearer {caller.token}"}, timeout=30
    ) as http:

        async def everywhere() -> list[tuple[int, Any]]:
            answers = await asyncio.gather(
                *(http.post(f"{door}/v1/chat/completions", json=asked) for door in doors)
            )
            return [
                (each.status_code, (each.json().get("error") or {}).get("code")) for each in answers
            ]

        tasks = "select count(*) as n from tasks where organisation_id = %s"
        # From no policy to one, to another, to none: each holds for the very next call.
        assert await everywhere() == [(200, None)] * 4
        before = books.rows(tasks, caller.organisation_id)
        for action, expected in (
            ("block", (400, "content_filter")),
            ("require_approval", (403, "approval_required")),
        ):
            await hold(caller, {**MAIL, "action": action})
            for _ in range(2):
                assert await everywhere() == [expected] * 4
        assert books.rows(tasks, caller.organisation_id) == before
        assert (await http.delete(f"{caller.base_url}/v1/policy")).status_code == 200
        assert await everywhere() == [(200, None)] * 4
    kept = books.rows(
        "select code, scope, count(*) as n from refused_calls where organisation_id = %s"
        " group by code, scope order by code",
        caller.organisation_id,
    )
    assert [tuple(row.values()) for row in kept] == [
        ("approval_required", "policy:mail", 8),
        ("content_blocked", "policy:mail", 8),
    ]
    books.assert_nothing_held(caller.organisation_id)
    refused = await post(caller, "chat/completions", asked)
    assert refused.status_code == 200
    # Who refuses names the rule, and never the content.
    await hold(caller, {**MAIL, "action": "block"})
    refused = await post(caller, "chat/completions", asked)
    assert refused.json()["error"]["rule"] == "mail"
    assert refused.headers["x-should-retry"] == "false"
    assert mail.partition("@")[0] not in refused.text
    for path, body in (
        ("responses", {"model": "scripted", "input": mail}),
        ("embeddings", {"model": "all-minilm-l6-v2", "input": mail}),
    ):
        answer = await post(caller, path, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "content_filter")
    # A team's own takes the place of the organisation's.
    (team,) = books.rows("select team_id from api_keys where key_id = %s", caller.key_id)
    await hold(caller, blue("flag"), team=str(team["team_id"]))
    flagged = await post(caller, "chat/completions", asks(say("Bluebird")))
    assert flagged.headers["x-overline-safety"] == "flag"
    assert (await post(caller, "chat/completions", asked)).status_code == 200


async def test_a_model_judges_by_calls_of_its_own(
    caller: Caller, sdk: openai.AsyncOpenAI, books: Books
) -> None:
    judge = {"id": "judge", "kind": "moderation", "model": "scripted", "action": "block"}
    await hold(caller, {**judge, "on": ["input"]})
    good = asks(f"{say('fine')} {FINE}", metadata={"project": "p"})
    for _ in range(2):
        assert (await streamed(sdk, **good))[0] == "fine"
    bad = await post(caller, "chat/completions", asks(f"{say('fine')} {FLAGGED}"))
    assert (bad.status_code, bad.json()["error"]["rule"]) == (400, "judge")
    rows = books.rows(
        "select outcome, tags, billed_usd from model_calls where organisation_id = %s"
        " order by started_at",
        caller.organisation_id,
    )
    judged = [row for row in rows if row["tags"].get("purpose") == "moderation"]
    # The same words are judged once.
    assert [row["outcome"] for row in judged] == ["succeeded", "cached", "succeeded"]
    assert judged[0]["tags"] == {"project": "p", "purpose": "moderation"}
    assert judged[0]["billed_usd"] > 0

    # An answer: nothing of it before it was judged, by a call that uses the slot of the one it is.
    limited = await caller.http.post(
        "/v1/limits",
        json={"scope": "key", "scope_id": str(caller.key_id), "concurrent_calls": 1},
    )
    assert limited.status_code == 200, limited.text
    await hold(caller, {**judge, "on": ["output"]})
    for verdict, said, reason in ((FINE, "fine " + FINE, "stop"), (FLAGGED, "", "content_filter")):
        answer = await streamed(sdk, **asks(say("fine " + verdict)))
        assert answer[:2] == (said, reason)
        kept = await sdk.chat.completions.retrieve(answer[2])
        assert (kept.choices[0].message.content or "") == said

    # Who cannot judge: as the policy says.
    absent = {**judge, "model": "no-such-model"}
    for on in ("input", "output"):
        await hold(caller, {**absent, "on": [on]})
        refused = await post(caller, "chat/completions", asks(say("fine")))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "safety_unavailable")
        assert refused.headers["retry-after"]
        await hold(caller, {**absent, "on": [on]}, on_failure="allow")
        assert (await post(caller, "chat/completions", asks(say("fine")))).status_code == 200
    books.assert_nothing_held(caller.organisation_id)


async def test_policies_are_said_and_tried_by_rest_and_on_the_command_line(
    stack: RunningStack, caller: Caller, tmp_path: Path
) -> None:
    http = caller.http
    assert (await http.get("/v1/policy")).status_code == 404
    assert (await http.delete("/v1/policy")).status_code == 404
    assert (await http.get(f"/v1/policy?team={uuid4()}")).status_code == 404
    assert (await http.put(f"/v1/policy?team={uuid4()}", json={})).status_code == 404
    wrong = await http.put("/v1/policy", json={"rules": [{"id": "x", "kind": "pii"}]})
    assert (wrong.status_code, wrong.json()["code"]) == (422, "OVL-1001")
    tried = await http.post(
        "/v1/policy/test", json={"texts": ["to a@example.com"], "policy": {"rules": [MAIL]}}
    )
    assert tried.json()["texts"] == ["to <EMAIL_ADDRESS_1>"]
    assert tried.json()["findings"] == [
        {"rule": "mail", "kind": "pii", "action": "redact", "part": 0, "start": 3, "end": 16,
         "label": "EMAIL_ADDRESS"}
    ]  # fmt: skip
    assert (await http.post("/v1/policy/test", json={"texts": ["x"]})).status_code == 404

    file = tmp_path / "policy.yaml"
    file.write_text("rules:\n  - {id: mail, kind: pii, action: flag}\ncases: []\n")
    env = {**stack.env, "OVERLINE_API_KEY": caller.token, "OVERLINE_API_URL": caller.base_url}

    def overline(*words: str) -> Any:
        done = subprocess.run(
            [OVERLINE, "policy", *words, "--json"],
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    assert (await asyncio.to_thread(overline, "set", str(file)))["version"] == 1
    assert (await asyncio.to_thread(overline, "show"))["document"]["rules"][0]["id"] == "mail"
    judged = await http.post("/v1/policy/test", json={"texts": ["a@example.com"]})
    assert judged.json()["outcome"] == "flag"
    assert (await asyncio.to_thread(overline, "unset"))["version"] == 2
    entries = (await http.get("/v1/audit?action=policy.")).json()["entries"]
    assert [entry["action"] for entry in entries] == ["policy.unset", "policy.set"]
