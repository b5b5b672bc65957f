"""Responses as they are sent: the object, its items, and the events of a stream in their order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from api.openai.errors import OpenAIError, error_object
from api.openai.responses import ResponseRequest
from api.openai.usage import response_usage
from inference.answers import Answer
from inference.upstream.messages import Delta, ToolPiece
from inference.usage import TokenUsage

__all__ = ["ResponseEvents", "messages_after", "output_items", "response_object"]

_encode = msgspec.json.encode
#: Chat's reasons for an end that is not one.
_CUT_SHORT = {"length": "max_output_tokens", "content_filter": "content_filter"}


def response_object(
    request: ResponseRequest,
    *,
    own_id: str,
    created: int,
    model: str,
    answer: Answer | None = None,
    used: TokenUsage | None = None,
    completed: datetime | None = None,
) -> dict[str, Any]:
    """Return the document of a response; without an answer it is in progress.

    Args:
        request: What was asked.
        own_id: Its id.
        created: When it was asked, in seconds since 1970.
        model: Who answers.
        answer: The answer, once it is whole.
        used: The tokens it took.
        completed: When it was whole; now, unless it is said.
    """
    cut_short = _CUT_SHORT.get(answer.finish_reason or "") if answer else None
    ended = int(time.time() if completed is None else completed.timestamp())
    return {
        "id": own_id,
        "object": "response",
        "created_at": created,
        "completed_at": ended if answer and not cut_short else None,
        "status": "in_progress" if answer is None else "incomplete" if cut_short else "completed",
        "background": False,
        "error": None,
        "incomplete_details": {"reason": cut_short} if cut_short else None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": model,
        "output": [] if answer is None else output_items(answer, own_id, cut_short is not None),
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": (request.reasoning or {}).get("effort"), "summary": None},
        "service_tier": "default",
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": (request.text or {}).get("format") or {"type": "text"}},
        "tool_choice": "auto" if request.tool_choice is None else request.tool_choice,
        "tools": [
            {"description": None, "parameters": None, "strict": None, **tool}
            for tool in request.tools or ()
        ],
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": "disabled",
        "usage": response_usage(used) if used is not None else None,
        "user": request.user,
    }


def output_items(answer: Answer, own_id: str, cut_short: bool = False) -> list[dict[str, Any]]:
    """Return the items of a whole answer: its message, if it has one, and its calls."""
    choice = answer.choices[0]
    status = "incomplete" if cut_short else "completed"
    content: list[dict[str, Any]] = []
    if choice.texts or not (choice.calls or choice.refusals):
        content.append(_text_part(choice.text, (choice.logprobs or {}).get("content")))
    if choice.refusals:
        content.append({"type": "refusal", "refusal": choice.refusal})
    items = [
        _call_item(own_id, place, call.id, call.name, call.arguments, status)
        for place, call in enumerate(choice.calls)
    ]
    if content:
        items.insert(choice.calls_first, _message_item(own_id, status, content))
    return items


def messages_after(answer: Answer) -> list[dict[str, Any]]:
    """Return what an answer adds to the conversation, as chat messages."""
    choice = answer.choices[0]
    message: dict[str, Any] = {"role": "assistant", "content": choice.text or None}
    if choice.calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in choice.calls
        ]
    elif choice.refusals:
        message["refusal"] = choice.refusal
    elif not choice.text:
        message["content"] = ""
    return [message]


def _message_id(own_id: str) -> str:
    return "msg_" + own_id.removeprefix("resp_")


def _message_item(own_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": _message_id(own_id),
        "type": "message",
        "role": "assistant",
        "status": status,
        "content": content,
    }


def _call_item(
    own_id: str,
    place: int,
    call_id: str,
    name: str,
    arguments: str,
    status: str,
) -> dict[str, Any]:
    return {
        "id": f"fc_{own_id.removeprefix('resp_')}_{place}",
        "type": "function_call",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
        "status": status,
    }


def _text_part(text: str, logprobs: Any = None) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs or []}


class ResponseEvents:
    """Writes the events of one stream: every item and part is opened, filled and closed.

    A helper of an SDK builds the response from them and refuses a stream whose order is not that.
    Pieces of several items may come in turns, so all of them are closed at the end, and with what
    the whole answer has of each: it is the same, streamed or not.
    """

    def __init__(self, request: ResponseRequest, *, own_id: str, created: int, model: str) -> None:
        self._request = request
        self._id = own_id
        self._created = created
        self._model = model
        self._message = _message_id(own_id)
        self._number = 0
        # Ids of the items, kinds of the parts of the message, as they were opened.
        self._items: list[str] = []
        self._parts: list[str] = []
        self._calls = 0
        self._logprobs: list[Any] = []

    def begin(self) -> bytes:
        """Return the events before the first piece."""
        response = response_object(
            self._request, own_id=self._id, created=self._created, model=self._model
        )
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events for some pieces."""
        written: list[bytes] = []
        for delta in deltas:
            if delta.logprobs is not None:
                self._logprobs += msgspec.json.decode(delta.logprobs).get("content") or ()
            if delta.text:
                told, self._logprobs = self._logprobs, []
                written.append(self._opened_part(_text_part("")))
                written.append(
                    self._event(
                        "response.output_text.delta",
                        **self._place("output_text"),
                        delta=delta.text,
                        logprobs=told,
                    )
                )
            if delta.refusal:
                written.append(self._opened_part({"type": "refusal", "refusal": ""}))
                written.append(
                    self._event(
                        "response.refusal.delta", **self._place("refusal"), delta=delta.refusal
                    )
                )
            for piece in delta.tool_calls:
                written.append(self._call_piece(piece))
        return b"".join(written)

    def end(self, answer: Answer, used: TokenUsage, completed: datetime | None = None) -> bytes:
        """Return the events after the last piece."""
        response = response_object(
            self._request,
            own_id=self._id,
            created=self._created,
            model=self._model,
            answer=answer,
            used=used,
            completed=completed,
        )
        closed = [self._closed(item) for item in response["output"]]
        kind = "incomplete" if response["status"] == "incomplete" else "completed"
        return b"".join(closed) + self._event(f"response.{kind}", response=response)

    def broken(self, error: OpenAIError, request_id: str) -> bytes:
        """Return the event of a stream that cannot go on."""
        told: Mapping[str, Any] = error_object(error, request_id)
        return self._event(
            "error", code=error.code, message=error.message, param=error.param, **told
        )

    def _call_piece(self, piece: ToolPiece) -> bytes:
        # As the answer counts them.
        number = min(piece.index, self._calls)
        self._calls = max(self._calls, number + 1)
        item = _call_item(self._id, number, piece.id or "", piece.name or "", "", "in_progress")
        opened = self._opened(item)
        if not piece.arguments:
            return opened
        return opened + self._event(
            "response.function_call_arguments.delta",
            item_id=item["id"],
            output_index=self._items.index(item["id"]),
            delta=piece.arguments,
        )

    def _opened(self, item: dict[str, Any]) -> bytes:
        """Open an item, if it is not."""
        if item["id"] in self._items:
            return b""
        self._items.append(item["id"])
        return self._event(
            "response.output_item.added", output_index=len(self._items) - 1, item=item
        )

    def _opened_part(self, part: dict[str, Any]) -> bytes:
        """Open a part of the message, and the message, if they are not."""
        kind = part["type"]
        if kind in self._parts:
            return b""
        opened = self._opened(_message_item(self._id, "in_progress", []))
        self._parts.append(kind)
        return opened + self._event("response.content_part.added", **self._place(kind), part=part)

    def _closed(self, item: dict[str, Any]) -> bytes:
        """Close an item with what it has in the whole answer."""
        written: list[bytes] = []
        if item["type"] == "message":
            for part in item["content"]:
                # An answer of no words is a message all the same.
                written.append(self._opened_part(_text_part("")) if not self._parts else b"")
                written.append(self._closed_part(part))
        place = self._items.index(item["id"])
        if item["type"] == "function_call":
            written.append(
                self._event(
                    "response.function_call_arguments.done",
                    item_id=item["id"],
                    output_index=place,
                    name=item["name"],
                    arguments=item["arguments"],
                )
            )
        written.append(self._event("response.output_item.done", output_index=place, item=item))
        return b"".join(written)

    def _closed_part(self, part: dict[str, Any]) -> bytes:
        place = self._place(part["type"])
        if part["type"] == "refusal":
            done = self._event("response.refusal.done", **place, refusal=part["refusal"])
        else:
            done = self._event(
                "response.output_text.done", **place, text=part["text"], logprobs=part["logprobs"]
            )
        return done + self._event("response.content_part.done", **place, part=part)

    def _place(self, kind: str) -> dict[str, Any]:
        """Return where a part of the message stands."""
        return {
            "item_id": self._message,
            "output_index": self._items.index(self._message),
            "content_index": self._parts.index(kind),
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(document) + b"\n\n"
