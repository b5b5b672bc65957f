"""`POST /v1/embeddings`: texts to vectors, as numbers or as base64 of little-endian floats."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field

from api.openai.errors import OpenAIError
from api.openai.fields import Asked, User, read, refuse_unsupported
from api.openai.sampling import ModelName

__all__ = ["EmbeddingRequest", "embedding_answer", "read_embedding"]

MOST_TEXTS = 2048


class EmbeddingRequest(Asked):
    """Vectors of some texts."""

    model: ModelName = Field(description="A model that embeds.")
    input: Any = Field(default=None, description="A text, or up to 2,048 of them.")
    encoding_format: Literal["float", "base64"] | None = Field(
        default=None, description="How a vector is written; `float` by default."
    )
    dimensions: int | None = Field(
        default=None, ge=1, le=16_000, description="Where the engine can."
    )
    user: User | None = Field(default=None, description="For attribution in the ledger.")

    @property
    def texts(self) -> list[str]:
        """The texts, one or more."""
        return [self.input] if isinstance(self.input, str) else list(self.input)


def read_embedding(document: Any) -> EmbeddingRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    request = read(EmbeddingRequest, document)
    asked = request.input
    if asked is None:
        raise OpenAIError(
            400,
            "Missing required parameter: 'input'.",
            code="missing_required_parameter",
            param="input",
        )
    if isinstance(asked, list):
        if not asked:
            raise OpenAIError(
                400, "'input' needs at least 1 item(s).", code="empty_array", param="input"
            )
        if len(asked) > MOST_TEXTS:
            raise OpenAIError(
                400,
                f"'input' is too long: at most {MOST_TEXTS} items are allowed.",
                code="array_above_max_length",
                param="input",
            )
        if all(isinstance(each, int | list) for each in asked):
            why = "texts are taken, token ids are not (LangChain: check_embedding_ctx_length=False)"
            raise refuse_unsupported("input", why)
    for number, text in enumerate(asked if isinstance(asked, list) else [asked]):
        param = f"input[{number}]" if isinstance(asked, list) else "input"
        if not isinstance(text, str):
            raise OpenAIError(
                400,
                f"Invalid type for '{param}': expected a string.",
                code="invalid_type",
                param=param,
            )
        if not text:
            raise OpenAIError(
                400,
                f"'{param}' must not be empty.",
                code="string_below_min_length",
                param=param,
            )
    return request


def embedding_answer(
    vectors: Sequence[Sequence[float]], *, model: str, tokens: int, as_base64: bool
) -> dict[str, Any]:
    """Return the answer's document."""
    return {
        "object": "list",
        "data": [
            {
                "object": "embedding",
                "index": number,
                "embedding": _packed(vector) if as_base64 else list(vector),
            }
            for number, vector in enumerate(vectors)
        ],
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _packed(vector: Sequence[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
