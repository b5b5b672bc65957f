"""Lines of batches as the OpenAI-compatible surface reads and answers them.

Workers make the lines and know nothing of this surface; it is given to them where they are started
(see `deploy.worker`), and fits what they say they need (`activities.batches.surface`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from api.body_guard import field_problems_of
from api.openai.embeddings import EmbeddingRequest, embedding_answer
from api.openai.errors import OpenAIError, error_object
from api.openai.failures import openai_error
from api.openai.fields import refuse_unsupported
from api.openai.rendering import Rendering
from api.openai.specs import chat_call, completion_call, embedding_call, response_call
from workflows.contracts.call import CallSpec

__all__ = ["LineFailure", "LineSurface"]


@dataclass(frozen=True, slots=True)
class LineFailure:
    """A failure in the words of the endpoint."""

    status: int
    code: str | None
    message: str
    param: str | None
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of any endpoint that generates."""

    spec: CallSpec
    rendering: Rendering
    texts: list[str] | None = None

    def document(self, made: Any) -> dict[str, Any]:
        """Return the answer's document."""
        return self.rendering.whole(made)


@dataclass(frozen=True, slots=True)
class _Embedding:
    """Texts to be embedded."""

    spec: CallSpec
    asked: EmbeddingRequest

    @property
    def texts(self) -> list[str] | None:
        """The texts."""
        return self.asked.texts

    def document(self, made: Any) -> dict[str, Any]:
        """Return the answer's document."""
        return embedding_answer(
            made.vectors,
            model=made.model,
            tokens=made.tokens,
            as_base64=self.asked.encoding_format == "base64",
        )


class LineSurface:
    """Reads lines, and words what came of them, exactly as the routes do."""

    def read(self, endpoint: str, body: Any) -> _Call | _Embedding:
        """Return the call that a body asks for.

        Raises:
            OpenAIError: It cannot be used (400).
        """
        for problem in field_problems_of(body, limit=1):
            raise OpenAIError(400, problem.detail, code=problem.code)
        if endpoint == "/v1/embeddings":
            return _Embedding(*embedding_call(body))
        if isinstance(body, dict):
            if body.get("stream"):
                raise refuse_unsupported("stream", "the answers of a batch are whole")
            if body.get("previous_response_id") is not None:
                raise refuse_unsupported("previous_response_id", "each line stands by itself")
        read = {
            "/v1/chat/completions": chat_call,
            "/v1/completions": completion_call,
            "/v1/responses": response_call,
        }[endpoint](body, "finish")
        return _Call(read.spec, read.rendering)

    def told(self, error: Exception, request_id: str, line: object = None) -> LineFailure:
        """Return a failure in the words of the endpoint; `line` is what was read, if it was."""
        told = openai_error(error)
        if isinstance(line, _Call):
            told = line.rendering.told(told)
        return LineFailure(
            told.status, told.code, told.message, told.param, error_object(told, request_id)
        )
