"""From a request's document to the call it asks for, and how that is answered: every endpoint.

What a route takes and what a line of a batch says are read by the same functions, so that they
mean the same and are refused in the same words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from api.openai.chat import read_chat
from api.openai.completions import DEFAULT_LONGEST, read_completion
from api.openai.conversation import check_messages
from api.openai.embeddings import EmbeddingRequest, read_embedding
from api.openai.errors import OpenAIError
from api.openai.rendering import Chat, Completion, Rendering, Responses
from api.openai.response_items import Conversation
from api.openai.response_names import ResponseNames
from api.openai.responses import ResponseRequest, chat_parameters, read_response
from workflows.contracts.call import CallSpec, OnDisconnect

__all__ = [
    "ReadCall",
    "chat_call",
    "completion_call",
    "embedding_call",
    "response_call",
]

#: Of a chat request: what says how it is answered, and never reaches a model.
_OURS = frozenset(
    {
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        "user",
        "safety_identifier",
        "metadata",
        "store",
        "echo",
    }
)


@dataclass(frozen=True, slots=True)
class ReadCall:
    """A call, and how it is answered: as a stream, or whole."""

    spec: CallSpec
    rendering: Rendering
    stream: bool


def chat_call(document: Any, on_disconnect: OnDisconnect) -> ReadCall:
    """Read a chat completion's document.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    asked = read_chat(document)
    spec = CallSpec(
        endpoint="chat",
        model=asked.model,
        messages=document["messages"],
        parameters=_reaching(document),
        user=asked.user or asked.safety_identifier,
        tags=asked.metadata or {},
        stored=asked.store is not False,
        on_disconnect=on_disconnect,
    )
    return ReadCall(spec, Chat(include_usage=asked.include_usage), bool(asked.stream))


def completion_call(document: Any, on_disconnect: OnDisconnect) -> ReadCall:
    """Read a completion's document.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    asked = read_completion(document)
    parameters = _reaching(document)
    parameters.setdefault("max_tokens", DEFAULT_LONGEST)
    spec = CallSpec(
        endpoint="completions",
        model=asked.model,
        prompt=asked.prompt,
        parameters=parameters,
        user=asked.user,
        on_disconnect=on_disconnect,
    )
    rendering = Completion(
        include_usage=asked.include_usage, echo=str(asked.prompt) if asked.echo else ""
    )
    return ReadCall(spec, rendering, bool(asked.stream))


def response_call(
    document: Any,
    on_disconnect: OnDisconnect,
    *,
    asked: ResponseRequest | None = None,
    history: Sequence[dict[str, Any]] = (),
) -> ReadCall:
    """Read a response's document.

    Args:
        document: The body.
        on_disconnect: What becomes of it when nobody waits for it any more.
        asked: The body, if it has been read already.
        history: The conversation it goes on from.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    asked = asked or read_response(document)
    talk = Conversation()
    if asked.instructions is not None:
        talk.add({"role": "system", "content": asked.instructions}, "instructions")
    talk.add_history(history, "previous_response_id")
    talk.add_items(asked.input)
    names = ResponseNames(talk.origins, "include" if asked.include else "top_logprobs")
    try:
        check_messages(talk.messages)
        parameters = chat_parameters(asked)
    except OpenAIError as error:
        raise names.told(error) from None
    spec = CallSpec(
        endpoint="responses",
        model=asked.model,
        messages=talk.messages,
        parameters=parameters,
        shown={
            name: value
            for name, value in document.items()
            if name not in ("input", "stream", "stream_options")
        },
        user=asked.user or asked.safety_identifier,
        tags=asked.metadata or {},
        stored=asked.store is not False,
        on_disconnect=on_disconnect,
    )
    return ReadCall(spec, Responses(asked, names), bool(asked.stream))


def embedding_call(document: Any) -> tuple[CallSpec, EmbeddingRequest]:
    """Read an embedding's document.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    asked = read_embedding(document)
    spec = CallSpec(
        endpoint="embeddings",
        model=asked.model,
        parameters={} if asked.dimensions is None else {"dimensions": asked.dimensions},
        user=asked.user,
    )
    return spec, asked


def _reaching(document: dict[str, Any]) -> dict[str, Any]:
    """Return what reaches a model, as it was written; what is null was not said."""
    return {
        name: value for name, value in document.items() if name not in _OURS and value is not None
    }
