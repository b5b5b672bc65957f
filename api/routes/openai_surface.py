"""The OpenAI-compatible surface: calls on the fast lane, and what is on file of them."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from typing import Annotated, Any
from uuid import UUID

import msgspec
from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from api.authentication import Caller, origin_of, parts_of
from api.json_body import BODY_MODELS, request_body
from api.lane import Call, Lane
from api.openai.answering import CallAnswer, call_headers
from api.openai.callers import Token
from api.openai.chat import ChatRequest
from api.openai.chat_answers import chat_completion
from api.openai.completions import CompletionRequest
from api.openai.embeddings import EmbeddingRequest, embedding_answer
from api.openai.errors import OpenAIError
from api.openai.models_list import is_served, model_object, models_list, served_names
from api.openai.response_answers import messages_after
from api.openai.response_reading import ReadAgain, read_again
from api.openai.responses import ResponseRequest, read_response
from api.openai.specs import (
    ReadCall,
    chat_call,
    completion_call,
    embedding_call,
    response_call,
)
from api.openapi import openai_answers
from api.parts import Parts
from inference.answers import Answer
from inference.usage import TokenUsage
from store.calls import Known
from store.identity import Origin, Principal, nameable
from workflows.contracts.call import CallSpec, OnDisconnect

__all__ = ["router"]

router = APIRouter(tags=["openai"])
for _model in (ChatRequest, CompletionRequest, EmbeddingRequest, ResponseRequest):
    BODY_MODELS[_model.__name__] = _model

_CACHE = ("auto", "on", "off")
_LONGEST_KEY = 200

PartsOf = Annotated[Parts, Depends(parts_of)]


@router.post(
    "/v1/chat/completions",
    responses=openai_answers(402, 404, 429, body=True, repeats=True),
    summary="A chat completion",
    openapi_extra=request_body(
        ChatRequest,
        {"model": "default", "messages": [{"role": "user", "content": "What is 12*7?"}]},
    )
    | {"security": [{"ApiKey": []}]},
)
async def create_chat_completion(request: Request, parts: PartsOf) -> Response:
    """Answer a conversation, whole or as a stream, as OpenAI does.

    `Idempotency-Key` replays the first answer. `X-Overline-On-Disconnect: finish` lets a call go
    on when its client has gone; it is read by the id in `X-Overline-Task`. `X-Overline-Cache` is
    `auto`, `on` or `off`.
    """
    door = await _Door.of(request, parts)
    return door.answer(chat_call(door.document, door.on_disconnect))


@router.get(
    "/v1/chat/completions/{completion_id}",
    responses=openai_answers(404, 409),
    summary="Read a chat completion again",
)
async def get_chat_completion(completion_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Read the answer of a call by its id; one that is still being made is a 409."""
    known, _ = await _on_file(_lane(parts), caller, completion_id, "chatcmpl-", "chat")
    document = chat_completion(
        _answer(known),
        own_id=completion_id,
        created=int(known.created_at.timestamp()),
        model=known.model,
        used=TokenUsage(**(known.usage or {})),
    )
    document["metadata"] = known.tags
    return _document(document, known)


@router.post(
    "/v1/completions",
    responses=openai_answers(402, 404, 429, body=True, repeats=True),
    summary="A completion of a text",
    openapi_extra=request_body(CompletionRequest, {"model": "gemma-3-270m", "prompt": "Once"})
    | {"security": [{"ApiKey": []}]},
)
async def create_completion(request: Request, parts: PartsOf) -> Response:
    """Go on with a text, without a chat template around it; for models that complete."""
    door = await _Door.of(request, parts)
    return door.answer(completion_call(door.document, door.on_disconnect))


@router.post(
    "/v1/responses",
    responses=openai_answers(402, 404, 429, body=True, repeats=True),
    summary="A response",
    openapi_extra=request_body(ResponseRequest, {"model": "default", "input": "What is 12*7?"})
    | {"security": [{"ApiKey": []}]},
)
async def create_response(request: Request, parts: PartsOf) -> Response:
    """Answer items, whole or as typed events; `previous_response_id` goes on from an earlier one.

    Headers are those of chat completions.
    """
    door = await _Door.of(request, parts)
    asked = read_response(door.document)
    history: list[dict[str, Any]] = []
    if asked.previous_response_id is not None:
        principal = await parts.callers.principal(door.token, parts.database, door.origin)
        history = await _history(door.lane, principal, asked.previous_response_id)
    return door.answer(
        response_call(door.document, door.on_disconnect, asked=asked, history=history)
    )


@router.get(
    "/v1/responses/{response_id}",
    responses=openai_answers(404, 409),
    summary="Read a response again",
)
async def get_response(
    response_id: str, caller: Caller, parts: PartsOf, how: Annotated[ReadAgain, Query()]
) -> Response:
    """Read a response by its id, whole or as events; one that is still being made is a 409."""
    known, spec = await _on_file(_lane(parts), caller, response_id, "resp_", "responses")
    return _document(read_again(known, spec.shown, response_id, how), known)


@router.post(
    "/v1/embeddings",
    responses=openai_answers(402, 404, 429, body=True, repeats=True),
    summary="Vectors of texts",
    openapi_extra=request_body(
        EmbeddingRequest, {"model": "all-minilm-l6-v2", "input": ["a text", "another"]}
    )
    | {"security": [{"ApiKey": []}]},
)
async def create_embeddings(request: Request, parts: PartsOf) -> Response:
    """Embed texts; metered and limited as any other call."""
    door = await _Door.of(request, parts)
    spec, asked = embedding_call(door.document)
    with parts.callers.calling(door.token):
        made = await door.lane.embed(
            spec,
            asked.texts,
            key_id=door.token.key_id,
            key_digest=door.token.digest,
            origin=door.origin,
            idempotency_key=door.idempotency_key,
            request_digest=door.digest("embeddings"),
        )
    document = embedding_answer(
        made.vectors,
        model=made.model,
        tokens=made.tokens,
        as_base64=asked.encoding_format == "base64",
    )
    headers = call_headers(
        task_id=str(made.task_id),
        model=made.model,
        cache=made.cache,
        replayed=made.replayed,
        cost_usd=f"{made.billed_usd:f}",
        rate=made.rate,
        safety=made.safety,
    )
    return Response(msgspec.json.encode(document), media_type="application/json", headers=headers)


@router.get("/v1/models", responses=openai_answers(), summary="Models and routes")
async def get_models(caller: Caller, parts: PartsOf) -> Response:
    """List what can be named as `model` with this key."""
    names = served_names(await parts.catalogue.read())
    may = await nameable(parts.database, caller.organisation_id, caller.key_id, names)
    document = models_list(may)
    return Response(msgspec.json.encode(document), media_type="application/json")


@router.get("/v1/models/{model:path}", responses=openai_answers(404), summary="One model or route")
async def get_model(
    model: Annotated[str, Path(max_length=256)], caller: Caller, parts: PartsOf
) -> Response:
    """Read one; a name that a wildcard stands for is one, too."""
    catalogue = await parts.catalogue.read()
    if not (
        is_served(catalogue, model)
        and await nameable(parts.database, caller.organisation_id, caller.key_id, [model])
    ):
        raise OpenAIError(
            404,
            "The model does not exist, is not deployed, or is not for this key.",
            code="model_not_found",
            param="model",
        )
    return Response(msgspec.json.encode(model_object(model)), media_type="application/json")


class _Door:
    """What every call's request says besides its body, looked at before anything of it is done."""

    def __init__(self, request: Request, parts: Parts, token: Token, origin: Origin) -> None:
        self.origin = origin
        self.document: Any = request.scope["state"].get("document")
        self.lane = _lane(parts)
        self.token = token
        self._parts = parts
        headers = request.headers
        self.idempotency_key = _idempotency_key(headers.get("idempotency-key"))
        self._cache = _one_of(headers.get("x-overline-cache"), "x-overline-cache", _CACHE)
        policy: Any = _one_of(
            headers.get("x-overline-on-disconnect"),
            "x-overline-on-disconnect",
            (parts.settings.on_disconnect, "cancel", "finish"),
        )
        self.on_disconnect: OnDisconnect = policy

    @classmethod
    async def of(cls, request: Request, parts: Parts) -> _Door:
        """Return it, once it is known that no stranger asks."""
        origin = origin_of(request)
        token = await parts.callers.token(
            request.headers.get("authorization"), parts.database, origin
        )
        request.scope["state"]["key_id"] = str(token.key_id)
        return cls(request, parts, token, origin)

    def answer(self, asked: ReadCall) -> CallAnswer:
        """Return the answer that a call will be."""
        return CallAnswer(
            self.lane,
            self._opens(asked.spec),
            asked.rendering,
            stream=asked.stream,
            policy=asked.spec.on_disconnect,
        )

    def digest(self, endpoint: str) -> str:
        """Return what tells a repetition from another request: a stream or not is the same one."""
        if self.idempotency_key is None:
            # Nobody can repeat it, so nobody asks.
            return ""
        essence = [
            endpoint,
            {
                name: value
                for name, value in self.document.items()
                if name not in ("stream", "stream_options")
            },
        ]
        return hashlib.sha256(msgspec.json.encode(essence, order="deterministic")).hexdigest()

    def _opens(self, spec: CallSpec) -> Callable[[], Awaitable[Call]]:
        async def opened() -> Call:
            with self._parts.callers.calling(self.token):
                call: Call = await self.lane.open(
                    spec,
                    key_id=self.token.key_id,
                    key_digest=self.token.digest,
                    origin=self.origin,
                    idempotency_key=self.idempotency_key,
                    request_digest=self.digest(spec.endpoint),
                    cache=self._cache,
                )
                return call

        return opened


def _lane(parts: Parts) -> Lane:
    lane = parts.lane
    if lane is None:
        raise OpenAIError(
            503, "This process makes no calls.", code="no_lane", headers={"Retry-After": "5"}
        )
    return lane


def _idempotency_key(value: str | None) -> str | None:
    if value is None:
        return None
    if not (0 < len(value) <= _LONGEST_KEY and value.isascii() and value.isprintable()):
        raise OpenAIError(
            400,
            f"'Idempotency-Key' must be 1 to {_LONGEST_KEY} visible ASCII characters.",
            code="invalid_value",
            param="Idempotency-Key",
        )
    return value


def _one_of(value: str | None, name: str, known: tuple[str, ...]) -> str:
    if value is None:
        return known[0]
    if value not in known:
        raise OpenAIError(
            400,
            f"'{name}' must be one of {', '.join(sorted(set(known)))}.",
            code="invalid_value",
            param=name,
        )
    return value


async def _on_file(
    lane: Lane, reader: Principal, own_id: str, prefix: str, endpoint: str
) -> tuple[Known, CallSpec]:
    """Return a call by the id of its answer.

    Raises:
        OpenAIError: There is none (404), or it has no answer yet, or will never have a whole one
            (409).
    """
    missing = OpenAIError(404, "There is no such answer.", code="not_found", param="id")
    try:
        if not own_id.startswith(prefix):
            raise missing
        task_id = UUID(hex=own_id.removeprefix(prefix))
    except ValueError:
        raise missing from None
    found = await lane.read(reader.organisation_id, task_id, reader.team_id)
    if found is None or found[0].endpoint != endpoint or not found[0].stored:
        raise missing
    known, spec = found
    waiting = known.status in ("accepted", "running")
    if known.answer is None or known.status == "cancelled":
        ended = "was cancelled" if known.status == "cancelled" else f"has {known.status}"
        raise OpenAIError(
            409,
            "It is still being made." if waiting else f"It {ended}: there is no whole answer.",
            code="in_progress" if waiting else f"call_{known.status}",
            headers={"Retry-After": "1"} if waiting else {"x-should-retry": "false"},
        )
    return known, spec


async def _history(lane: Lane, reader: Principal, response_id: str) -> list[dict[str, Any]]:
    """Return the conversation up to the end of a response; instructions are not part of it."""
    try:
        known, spec = await _on_file(lane, reader, response_id, "resp_", "responses")
    except OpenAIError as error:
        if error.status != 404:
            raise
        raise OpenAIError(
            400,
            "There is no response of this id to go on from.",
            code="previous_response_not_found",
            param="previous_response_id",
        ) from None
    asked = spec.messages[1:] if spec.shown.get("instructions") is not None else spec.messages
    return [*asked, *messages_after(_answer(known))]


def _answer(known: Known) -> Answer:
    assert known.answer is not None
    return Answer.of(known.answer)


def _document(document: dict[str, Any] | bytes, known: Known) -> Response:
    """Return the answer that a document is, or the events of one."""
    headers = call_headers(
        task_id=str(known.task_id),
        model=known.model,
        cache="miss",
        replayed=False,
        cost_usd=f"{known.billed_usd:f}",
        safety=(known.answer or {}).get("safety"),
    )
    if isinstance(document, bytes):
        return Response(document, media_type="text/event-stream", headers=headers)
    return Response(msgspec.json.encode(document), media_type="application/json", headers=headers)
