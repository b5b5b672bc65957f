"""One call's answer in the form of the route that took it: whole, or as a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from api.lane import Call
from api.openai.chat_answers import DONE, ChatChunks, chat_completion
from api.openai.completion_answers import CompletionChunks, text_completion
from api.openai.errors import OpenAIError, error_object
from api.openai.response_answers import ResponseEvents, response_object
from api.openai.response_names import ResponseNames
from api.openai.responses import ResponseRequest
from inference.upstream.messages import Delta

__all__ = ["Chat", "Completion", "Rendering", "Responses", "call_id"]


class Rendering(Protocol):
    """How a route answers."""

    def whole(self, call: Call) -> dict[str, Any]:
        """Return the document of a call that is over."""

    def begin(self, call: Call) -> bytes:
        """Return what a stream begins with."""

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return what some pieces add to it."""

    def end(self, call: Call) -> bytes:
        """Return what it ends with."""

    def broken(self, error: OpenAIError, request_id: str) -> bytes:
        """Return what it says when it cannot go on: nothing comes after that."""

    def told(self, error: OpenAIError) -> OpenAIError:
        """Return an error by the names that the route has for what is meant."""


def call_id(prefix: str, call: Call) -> str:
    """Return the id of an answer: the task's, so that it leads there."""
    return f"{prefix}{call.task_id.hex}"


class _Chunked:
    """What chat completions and completions of a text have in common: chunks, and a last line."""

    def __init__(self, *, include_usage: bool) -> None:
        self._include_usage = include_usage
        self._chunks: ChatChunks | CompletionChunks | None = None

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the chunks of some pieces."""
        assert self._chunks is not None
        return self._chunks.of(deltas)

    def end(self, call: Call) -> bytes:
        """Return the usage, and the last line."""
        assert self._chunks is not None
        return self._chunks.end(call.used) + DONE

    def broken(self, error: OpenAIError, request_id: str) -> bytes:
        """Return an error that SDKs raise; the last line never comes."""
        return b"data: " + msgspec.json.encode(error_object(error, request_id)) + b"\n\n"

    def told(self, error: OpenAIError) -> OpenAIError:
        """Return an error as it is: its names are those of chat completions."""
        return error


class Chat(_Chunked):
    """Chat completions."""

    def whole(self, call: Call) -> dict[str, Any]:
        """Return the document of a call that is over."""
        return chat_completion(
            call.answer,
            own_id=call_id("chatcmpl-", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
            used=call.used,
        )

    def begin(self, call: Call) -> bytes:
        """Return what a stream begins with: nothing before its first piece."""
        self._chunks = ChatChunks(
            own_id=call_id("chatcmpl-", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
            include_usage=self._include_usage,
        )
        return b""


class Completion(_Chunked):
    """Completions of a text."""

    def __init__(self, *, include_usage: bool, echo: str = "") -> None:
        super().__init__(include_usage=include_usage)
        self._echo = echo

    def whole(self, call: Call) -> dict[str, Any]:
        """Return the document of a call that is over."""
        return text_completion(
            call.answer,
            own_id=call_id("cmpl-", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
            used=call.used,
            echo=self._echo,
        )

    def begin(self, call: Call) -> bytes:
        """Return what a stream begins with: nothing before its first piece."""
        self._chunks = CompletionChunks(
            own_id=call_id("cmpl-", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
            include_usage=self._include_usage,
            echo=self._echo,
        )
        return b""


class Responses:
    """Responses."""

    def __init__(self, request: ResponseRequest, names: ResponseNames) -> None:
        self._request = request
        self._names = names
        self._events: ResponseEvents | None = None

    def whole(self, call: Call) -> dict[str, Any]:
        """Return the document of a call that is over."""
        return response_object(
            self._request,
            own_id=call_id("resp_", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
            answer=call.answer,
            used=call.used,
            completed=call.ended_at,
        )

    def begin(self, call: Call) -> bytes:
        """Return the events before the first piece."""
        self._events = ResponseEvents(
            self._request,
            own_id=call_id("resp_", call),
            created=int(call.created_at.timestamp()),
            model=call.model,
        )
        return self._events.begin()

    def of(self, deltas: Sequence[Delta]) -> bytes:
        """Return the events of some pieces."""
        assert self._events is not None
        return self._events.of(deltas)

    def end(self, call: Call) -> bytes:
        """Return the events that close what is open."""
        assert self._events is not None
        return self._events.end(call.answer, call.used, call.ended_at)

    def broken(self, error: OpenAIError, request_id: str) -> bytes:
        """Return the event of a stream that cannot go on."""
        assert self._events is not None
        return self._events.broken(self.told(error), request_id)

    def told(self, error: OpenAIError) -> OpenAIError:
        """Return an error by the names of responses."""
        return self._names.told(error)
