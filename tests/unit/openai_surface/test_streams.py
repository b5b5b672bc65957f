"""Streams as they are written: chunks with little work each, events in their order."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from activities.lane.kept import kept
from api.openai.chat_answers import ChatChunks, chat_completion
from api.openai.completion_answers import CompletionChunks
from api.openai.errors import OpenAIError, error_of, speaks_openai
from api.openai.failures import openai_error
from api.openai.response_answers import ResponseEvents, messages_after, response_object
from api.openai.response_reading import ReadAgain, read_again
from api.openai.responses import read_response
from api.openai.specs import response_call
from inference.answers import Answer
from inference.errors import EngineBusy, EngineDenied, EngineFailed, Told
from inference.upstream.messages import Delta, ToolPiece
from inference.usage import TokenUsage
from safety.redactions import Redactions
from store.calls import Known
from store.errors import DatabaseUnavailable
from workflows import errors

USED = TokenUsage(3, 2, 1)
ENDED = datetime(2026, 1, 2, tzinfo=UTC)
CALLS = (
    Delta(tool_calls=(ToolPiece(0, "a", "f", ""),)),
    Delta(tool_calls=(ToolPiece(0, arguments="{}"),)),
    Delta(tool_calls=(ToolPiece(1, "b", "g", '{"x":1}'),)),
    Delta(finish_reason="tool_calls"),
)


def data(written: bytes) -> list[dict[str, Any]]:
    return [
        json.loads(line[6:]) for line in written.decode().splitlines() if line.startswith("data: ")
    ]


def test_a_choice_opens_with_who_speaks_and_closes_with_why() -> None:
    chunks = ChatChunks(own_id="i", created=1, model='m"x', include_usage=True)
    written = chunks.of([Delta(text='a"\n'), Delta(choice=1, text="b")])
    written += chunks.of([Delta(finish_reason="stop"), Delta(choice=1, finish_reason="length")])
    *told, last = data(written + chunks.end(USED))
    assert {(chunk["id"], chunk["model"]) for chunk in told} == {("i", 'm"x')}
    first, second = (
        [c["choices"][0] for c in told if c["choices"][0]["index"] == n] for n in (0, 1)
    )
    assert [c["delta"].get("content") for c in first] == ["", 'a"\n', None]
    assert [c["finish_reason"] for c in first] == [None, None, "stop"]
    assert second[-1]["finish_reason"] == "length"
    assert (last["choices"], last["usage"]["total_tokens"]) == ([], 5)


def test_calls_come_in_pieces_and_without_content() -> None:
    chunks = ChatChunks(own_id="i", created=1, model="m", include_usage=False)
    told = data(chunks.of(CALLS))
    assert told[0]["choices"][0]["delta"]["content"] is None
    pieces = [c["choices"][0]["delta"]["tool_calls"][0] for c in told[1:-1]]
    assert pieces[0] == {
        "index": 0,
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": ""},
    }
    assert pieces[1] == {"index": 0, "function": {"arguments": "{}"}}
    assert chunks.end(USED) == b""


def test_an_echo_comes_once() -> None:
    chunks = CompletionChunks(own_id="i", created=1, model="m", include_usage=False, echo="Once ")
    told = data(chunks.of([Delta(text="upon"), Delta(text=" a"), Delta(finish_reason="stop")]))
    assert [chunk["choices"][0]["text"] for chunk in told] == ["Once upon", " a", ""]


def streamed(*deltas: Delta, **asked: Any) -> tuple[list[dict[str, Any]], Answer]:
    """Write a response's stream; what it ends with is what the whole answer is."""
    request = read_response({"model": "m", "input": "hi", **asked})
    events = ResponseEvents(request, own_id="resp_1", created=1, model="m")
    answer = Answer()
    written = events.begin()
    for delta in deltas:
        answer.add(delta)
        written += events.of([delta])
    told = data(written + events.end(answer, USED, ENDED))
    assert [event["sequence_number"] for event in told] == list(range(len(told)))
    for again in (answer, Answer.of(answer.document())):
        whole = response_object(
            request,
            own_id="resp_1",
            created=1,
            model="m",
            answer=again,
            used=USED,
            completed=ENDED,
        )
        assert told[-1]["response"] == whole
    done = [e["item"] for e in told if e["type"] == "response.output_item.done"]
    assert done == told[-1]["response"]["output"]
    opened = [e["item"]["id"] for e in told if e["type"] == "response.output_item.added"]
    assert opened == [item["id"] for item in done]
    return told, answer


def test_items_open_and_close_in_order_with_every_number() -> None:
    told, answer = streamed(Delta(text="Wait."), *CALLS)
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert kinds == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "output_item.added",
        "function_call_arguments.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "function_call_arguments.done",
        "output_item.done",
        "completed",
    ]
    output = told[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "function_call"]
    assert {item["status"] for item in output} == {"completed"}
    assert told[-1]["response"]["completed_at"] == ENDED.timestamp()
    assert messages_after(answer)[0]["tool_calls"][1]["function"]["name"] == "g"


def test_a_stream_ends_with_what_the_whole_answer_is() -> None:
    told, _ = streamed(Delta(text="half"), Delta(finish_reason="length"))
    assert told[-1]["type"] == "response.incomplete"
    assert told[-1]["response"]["output"][0]["status"] == "incomplete"
    # Calls whose pieces come in turns, and words after and between them.
    told, _ = streamed(
        Delta(tool_calls=(ToolPiece(0, "a", "f"),)),
        Delta(text="And "),
        Delta(tool_calls=(ToolPiece(1, "b", "g"),)),
        Delta(tool_calls=(ToolPiece(0, arguments='{"x":'),)),
        Delta(text="now"),
        Delta(tool_calls=(ToolPiece(1, arguments="{}"), ToolPiece(0, arguments="1}"))),
        Delta(finish_reason="tool_calls"),
    )
    first, message, second = told[-1]["response"]["output"]
    assert (first["call_id"], first["name"], first["arguments"]) == ("a", "f", '{"x":1}')
    assert (second["call_id"], second["name"], second["arguments"]) == ("b", "g", "{}")
    assert message["content"][0]["text"] == "And now"
    streamed(Delta(text="half"), Delta(refusal="no"), Delta(finish_reason="stop"))


def test_logprobs_are_in_every_event_that_has_room_for_them() -> None:
    def raw(token: str) -> msgspec.Raw:
        made = {"token": token, "logprob": -0.1, "bytes": None, "top_logprobs": []}
        return msgspec.Raw(msgspec.json.encode({"content": [made], "refusal": None}))

    told, _ = streamed(
        Delta(logprobs=raw("h")),
        Delta(text="hi", logprobs=raw("i")),
        Delta(finish_reason="stop"),
        include=["message.output_text.logprobs"],
    )

    def tokens(found: Any) -> list[str]:
        return [each["token"] for each in found]

    delta, done, part = (
        next(e for e in told if e["type"] == f"response.{kind}")
        for kind in ("output_text.delta", "output_text.done", "content_part.done")
    )
    final = told[-1]["response"]["output"][0]["content"][0]
    for found in (delta, done, part["part"], final):
        assert tokens(found["logprobs"]) == ["h", "i"]


def test_an_answer_of_no_words_is_a_message() -> None:
    told, _ = streamed(Delta(finish_reason="stop"))
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""
    whole = chat_completion(Answer(), own_id="i", created=1, model="m", used=USED)
    assert whole["choices"][0]["message"]["content"] == ""


def test_a_response_is_told_again_as_it_was() -> None:
    answer = Answer()
    for delta in (Delta(text="Wait."), *CALLS):
        answer.add(delta)
    known = Known(
        how="earlier",
        organisation_id=UUID(int=0),
        team_id=UUID(int=0),
        task_id=UUID(int=1),
        model="m",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        ended_at=ENDED,
        answer=answer.document(),
    )
    shown = {"model": "m", "previous_response_id": "resp_0", "metadata": {"a": "b"}}
    whole = read_again(known, shown, "resp_1", ReadAgain())
    assert isinstance(whole, dict)
    assert (whole["completed_at"], whole["previous_response_id"]) == (ENDED.timestamp(), "resp_0")
    told = read_again(known, shown, "resp_1", ReadAgain(stream=True))
    assert isinstance(told, bytes)
    assert data(told)[-1]["response"] == whole
    asked = response_call({"model": "m", "input": "hi"}, "cancel")
    call = kept(asked.spec, known, Redactions(), replayed=True)
    assert asked.rendering.whole(call)["completed_at"] == ENDED.timestamp()
    for how, param in (
        ({"starting_after": 3}, "starting_after"),
        ({"include[]": ["reasoning.encrypted_content"]}, "include[0]"),
    ):
        with pytest.raises(OpenAIError) as refused:
            read_again(known, shown, "resp_1", ReadAgain.model_validate(how))
        assert refused.value.param == param


def test_every_failure_has_its_status_and_says_whether_to_ask_again() -> None:
    def told(error: BaseException) -> tuple[int, str | None, str | None, str | None]:
        e = openai_error(error)
        return e.status, e.code, e.headers.get("x-should-retry"), e.headers.get("Retry-After")

    assert told(errors.BudgetExceeded("x")) == (402, "insufficient_quota", "false", None)
    assert told(errors.Unauthenticated("x"))[:2] == (401, "invalid_api_key")
    assert told(errors.Conflict("x", code="idempotency_key_reused"))[0] == 422
    waits = errors.Conflict("x", code="idempotency_key_in_use", retry_after_s=5)
    assert told(waits) == (409, "idempotency_key_in_use", "true", "5")
    assert told(DatabaseUnavailable("x")) == (503, "database_unavailable", None, "2")
    busy = EngineBusy("x", told=Told(429, "slow down", code="c", retry_after_s=6.2))
    assert told(busy) == (429, "c", None, "7")
    patient = EngineBusy("x", told=Told(429, retry_after_s=3_000))
    assert told(patient)[3] == "110"
    assert told(EngineDenied("x", "denied", Told(401)))[:2] == (503, "upstream_denied")
    assert told(EngineFailed("x", told=Told(500, "broke")))[0] == 500
    assert told(ValueError("a secret"))[0] == 500
    assert "secret" not in openai_error(ValueError("a secret")).message
    assert isinstance(error_of(errors.NotFound, "x"), OpenAIError)
    assert speaks_openai("/v1/chat/completions")
    assert not speaks_openai("/v1/tasks")
