"""What the model sees: ingested documents, passages, and what is left when the window is full."""

from __future__ import annotations

import asyncio
import time
from array import array
from typing import Any

from tests.integration.tasks.books import Books
from tests.integration.tasks.caller import Caller, choose, say

MODEL = "scripted"
WINDOW = 131_072

DOCUMENTS = {
    "leave.md": "# Leave\n\nEvery employee has thirty days of paid leave a year. Leave is asked "
    "for two weeks ahead.",
    "printer.md": "# The printer\n\nThe printer on the second floor takes paper of size A4 only. "
    "Its toner is in the cupboard beside it.",
    "cats.md": "# Cats\n\nThe office cat is called Mauzi and sleeps on the warm server rack.",
}


async def _ingest(caller: Caller, collection: str) -> dict[str, dict[str, Any]]:
    await caller.request("POST", "/v1/collections", json={"name": collection})
    sent = {}
    for name, text in DOCUMENTS.items():
        body = {"external_id": name, "title": name, "text": text}
        path = f"/v1/collections/{collection}/documents"
        sent[name] = (await caller.request("POST", path, json=body)).json()
    for document in sent.values():
        await _ready(caller, collection, document["id"])
    return sent


async def _ready(caller: Caller, collection: str, document_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    path = f"/v1/collections/{collection}/documents/{document_id}"
    while True:
        read: dict[str, Any] = (await caller.request("GET", path)).json()
        if read["status"] == "ready":
            return read
        assert read["status"] == "pending", read
        assert time.monotonic() < deadline, read
        await asyncio.sleep(0.05)


async def test_a_search_finds_what_was_ingested(caller: Caller, books: Books) -> None:
    await _ingest(caller, "handbook")
    question = (
        "How many days off do I have? "
        + choose({"tool": "search", "query": "days of paid leave"})
        + say("Thirty.")
    )
    task = await caller.answered(
        question,
        model=MODEL,
        collections=["handbook"],
        tools=[{"name": "search", "must_call": True}],
    )
    searched, answered = await caller.steps(task["id"])
    assert searched["tool_result"].startswith("leave.md: ")
    assert "thirty days of paid leave" in searched["tool_result"]
    # An agent that searches by itself is given no passages besides.
    assert "passage" not in [part["kind"] for part in answered["provenance"]]
    assert task["answer"] == "Thirty."
    books.assert_nothing_held(caller.organisation_id)


async def test_passages_of_the_collections_are_put_before_the_question(
    caller: Caller, books: Books
) -> None:
    await _ingest(caller, "handbook")
    task = await caller.answered(
        "What is the name of the office cat? " + say("Mauzi."),
        model=MODEL,
        collections=["handbook"],
        passages=1,
        cache="off",
    )
    (step,) = await caller.steps(task["id"])
    assert [part["kind"] for part in step["provenance"]] == ["passage", "message"]
    chunk = step["provenance"][0]["source"].removeprefix("chunk ")
    (row,) = books.rows("select text from chunks where chunk_id = %s", chunk)
    assert "Mauzi" in row["text"]


async def test_a_document_sent_again_does_nothing_and_a_new_text_replaces_the_old(
    caller: Caller,
) -> None:
    sent = await _ingest(caller, "handbook")
    path = "/v1/collections/handbook/documents"
    same = {"external_id": "cats.md", "title": "cats.md", "text": DOCUMENTS["cats.md"]}
    again = await caller.request("POST", path, json=same)
    assert (again.status_code, again.json()["changed"]) == (200, False)
    assert again.json()["workflow_id"] is None
    renamed = same | {"text": "# Cats\n\nThe office cat is called Findus."}
    changed = (await caller.request("POST", path, json=renamed)).json()
    assert (changed["changed"], changed["version"]) == (True, 2)
    assert changed["id"] == sent["cats.md"]["id"]
    await _ready(caller, "handbook", changed["id"])
    question = choose({"tool": "search", "query": "office cat"}) + say("Findus.")
    task = await caller.answered(
        question,
        model=MODEL,
        collections=["handbook"],
        tools=[{"name": "search", "must_call": True}],
    )
    found = (await caller.steps(task["id"]))[0]["tool_result"]
    assert "Findus" in found
    assert "Mauzi" not in found


def _kept(step: dict[str, Any]) -> dict[str, bool]:
    return {f"{part['kind']} {part['source']}": part["kept"] for part in step["provenance"]}


async def test_old_messages_go_first_pinned_and_newest_stay(caller: Caller) -> None:
    size = 20_000
    messages = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": f"{number} " * (size // 2)}
        for number in range(8)
    ]
    messages[1]["pinned"] = True  # type: ignore[assignment]
    messages.append({"role": "user", "content": "And now? " + say("Fitted.")})
    task = await caller.answered(messages=messages, model=MODEL, system="Be kind.")
    (step,) = await caller.steps(task["id"])
    kept = _kept(step)
    assert kept["system request"]
    assert kept["message message 2"]
    assert kept["message message 9"]
    unpinned = [kept[f"message message {number}"] for number in (1, 3, 4, 5, 6, 7, 8)]
    # Dropped from the oldest on, and no more than needed.
    assert unpinned == sorted(unpinned)
    assert not unpinned[0]
    assert unpinned[-1]
    assert WINDOW - size - 600 < task["prompt_tokens"] <= WINDOW - 256
    assert task["answer"] == "Fitted."


async def test_a_tool_result_is_never_kept_without_its_call(caller: Caller, books: Books) -> None:
    """The window has room for what is pinned and one of two tool calls, not for both."""
    digits = ("1", "2")
    sums = [f"{digit * 12}+{digit * 12}" for digit in digits]
    question = "".join(choose({"tool": "calculator", "expression": s}) for s in sums) + say("Done.")
    pinned = WINDOW - 256 - len(question) - 200
    task = await caller.answered(
        messages=[
            {"role": "user", "content": "x" * pinned, "pinned": True},
            {"role": "user", "content": question},
        ],
        model=MODEL,
        tools=[{"name": "calculator", "max_calls": 2}],
    )
    step = (await caller.steps(task["id"]))[-1]
    assert _kept(step) == {
        "message message 1": True,
        "tool_result step 1": False,
        "tool_result step 2": True,
        "message message 2": True,
    }
    (row,) = books.rows(
        "select prompt_ids from generations where generation_key = %s",
        f"{task['id']}:{step['step']}#0",
    )
    read = "".join(map(chr, array("i", row["prompt_ids"])))
    for digit, expression, there in zip(digits, sums, (False, True), strict=True):
        result = f"{expression} = {int(digit * 12) * 2}"
        # The call is quoted with its result, or neither is there.
        assert (f"({expression}) {result}" in read) is there
        assert (result in read) is there


async def test_what_must_be_kept_and_does_not_fit_is_a_typed_error(
    caller: Caller, books: Books
) -> None:
    task_id = await caller.submit("x" * WINDOW + say("never"), model=MODEL)
    task = await caller.ended(task_id)
    assert (task["status"], task["error"]["code"]) == ("failed", "OVL-1006")
    assert str(WINDOW) in task["error"]["message"]
    assert books.ledger(task_id) == []
    books.assert_nothing_held(caller.organisation_id)
