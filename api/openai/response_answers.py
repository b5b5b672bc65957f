"""Responses as they are sent: the object, its items, and the events of a stream in their order."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
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
) -> dict[str, Any]:
    """Return the document of a response; without an answer it is in progress."""
    cut_short = _CUT_SHORT.get(answer.finish_reason or "") if answer else None
    return {
        "id": own_id,
        "object": "response",
        "created_at": created,
        "completed_at": int(time.time()) if answer and not cut_short else None,
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
    items: list[dict[str, Any]] = []
    content: list[dict[str, Any]] = []
    if choice.texts or not (choice.calls or choice.refusals):
        content.append(_text_part(choice.text, (choice.logprobs or {}).get("content")))
    if choice.refusals:
        content.append({"type": "refusal", "refusal": choice.refusal})
    if content:
        items.append(
            {
                "id": _message_id(own_id),
                "type": "message",
                "role": "assistant",
                "status": status,
                "content": content,
            }
        )
    items += [
        _call_item(own_id, place, call.id, call.name, call.arguments, status)
        for place, call in enumerate(choice.calls)
    ]
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
    """

    def __init__(self, request: ResponseRequest, *, own_id: str, created: int, model: str) -> None:
        self._request = request
        self._id = own_id
        self._created = created
        self._model = model
        self._number = 0
        self._items: list[dict[str, Any]] = []
        # Of the open item: its kind ("text", "refusal" or the place of a call) and its text.
        self._open: str | int | None = None
        self._text: list[str] = []

    def begin(self) -> bytes:
        """Return the events before the first piece."""
        response = self._object()
        return self._event("response.created", response=response) + self._event(
            "response.in_progress", response=response
        )

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events for some pieces."""
        written: list[bytes] = []
        for delta in deltas:
            if delta.text:
                written.append(self._switch("text"))
                written.append(self._text_delta(delta))
            if delta.refusal:
                written.append(self._switch("refusal"))
                self._text.append(delta.refusal)
                written.append(
                    self._event("response.refusal.delta", **self._place(), delta=delta.refusal)
                )
            for piece in delta.tool_calls:
                written.append(self._call_piece(piece))
        return b"".join(written)

    def end(self, answer: Answer, used: TokenUsage) -> bytes:
        """Return the events after the last piece."""
        # An answer of no words is a message all the same.
        opened = b"" if self._items else self._switch("text")
        closed = self._close()
        response = response_object(
            self._request,
            own_id=self._id,
            created=self._created,
            model=self._model,
            answer=answer,
            used=used,
        )
        response["output"] = self._items
        kind = "incomplete" if response["status"] == "incomplete" else "completed"
        return opened + closed + self._event(f"response.{kind}", response=response)

    def broken(self, error: OpenAIError, request_id: str) -> bytes:
        """Return the event of a stream that cannot go on."""
        told: Mapping[str, Any] = error_object(error, request_id)
        return self._event(
            "error", code=error.code, message=error.message, param=error.param, **told
        )

    def _object(self) -> dict[str, Any]:
        return response_object(
            self._request, own_id=self._id, created=self._created, model=self._model
        )

    def _text_delta(self, delta: Delta) -> bytes:
        self._text.append(delta.text)
        logprobs: Any = []
        if delta.logprobs is not None:
            logprobs = msgspec.json.decode(delta.logprobs).get("content") or []
        return self._event(
            "response.output_text.delta", **self._place(), delta=delta.text, logprobs=logprobs
        )

    def _call_piece(self, piece: ToolPiece) -> bytes:
        opened = b""
        if self._open != piece.index:
            opened = self._close()
            item = _call_item(
                self._id, piece.index, piece.id or "", piece.name or "", "", "in_progress"
            )
            self._open, self._text = piece.index, []
            self._items.append(item)
            opened += self._event(
                "response.output_item.added", output_index=len(self._items) - 1, item=item
            )
        if not piece.arguments:
            return opened
        self._text.append(piece.arguments)
        return opened + self._event(
            "response.function_call_arguments.delta",
            item_id=self._items[-1]["id"],
            output_index=len(self._items) - 1,
            delta=piece.arguments,
        )

    def _switch(self, kind: str) -> bytes:
        """Open a message for text, or for a refusal, if none is open."""
        if self._open == kind:
            return b""
        closed = self._close()
        number = sum(item["type"] == "message" for item in self._items)
        item = {
            "id": _message_id(self._id) + (f"_{number}" if number else ""),
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._items.append(item)
        self._open, self._text = kind, []
        part = _text_part("") if kind == "text" else {"type": "refusal", "refusal": ""}
        return (
            closed
            + self._event(
                "response.output_item.added", output_index=len(self._items) - 1, item=item
            )
            + self._event("response.content_part.added", **self._place(), part=part)
        )

    def _close(self) -> bytes:
        """Close the item that is open."""
        kind, self._open = self._open, None
        if kind is None:
            return b""
        text = "".join(self._text)
        place = len(self._items) - 1
        item = self._items[place]
        item["status"] = "completed"
        if isinstance(kind, int):
            item["arguments"] = text
            done = self._event(
                "response.function_call_arguments.done",
                item_id=item["id"],
                output_index=place,
                name=item["name"],
                arguments=text,
            )
        elif kind == "text":
            part = _text_part(text)
            item["content"] = [part]
            done = self._event(
                "response.output_text.done", **self._place(), text=text, logprobs=[]
            ) + self._event("response.content_part.done", **self._place(), part=part)
        else:
            part = {"type": "refusal", "refusal": text}
            item["content"] = [part]
            done = self._event(
                "response.refusal.done", **self._place(), refusal=text
            ) + self._event("response.content_part.done", **self._place(), part=part)
        return done + self._event("response.output_item.done", output_index=place, item=item)

    def _place(self) -> dict[str, Any]:
        place = len(self._items) - 1
        return {"item_id": self._items[place]["id"], "output_index": place, "content_index": 0}

    def _event(self, kind: str, **fields: Any) -> bytes:
        document = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return b"event: " + kind.encode() + b"\ndata: " + _encode(document) + b"\n\n"
