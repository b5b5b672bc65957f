"""`POST /v1/completions`: a text to go on with, without a chat template around it."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from api.openai.fields import missing, read, refuse_unsupported, wrong, wrong_type
from api.openai.sampling import Sampled

__all__ = ["DEFAULT_LONGEST", "CompletionRequest", "read_completion"]

#: OpenAI's own, in tokens.
DEFAULT_LONGEST = 16


class CompletionRequest(Sampled):
    """A completion of a text."""

    prompt: Any = Field(default=None, description="The text; one a request.")
    max_tokens: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Longest answer, in tokens; 16 by default."
    )
    n: int | None = Field(default=None, ge=1, le=128, description="Only 1.")
    best_of: int | None = Field(default=None, ge=1, le=20, description="Only 1.")
    echo: bool | None = Field(default=None, description="Whether the prompt comes first.")
    logprobs: int | None = Field(default=None, ge=0, le=5, description="Refused.")
    suffix: str | None = Field(default=None, description="Refused.")


def read_completion(document: Any) -> CompletionRequest:
    """Read a parsed body.

    Raises:
        OpenAIError: It cannot be used (400).
    """
    request = read(CompletionRequest, document)
    prompt = request.prompt
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
        request = request.model_copy(update={"prompt": prompt})
    if prompt is None:
        raise missing("prompt")
    if isinstance(prompt, list):
        why = "one text a request, and no token ids (in LangChain say batch_size=1)"
        raise refuse_unsupported("prompt", why)
    if not isinstance(prompt, str):
        raise wrong_type("prompt", "a string")
    if not prompt:
        raise wrong("prompt", "'prompt' must not be empty.", "string_below_min_length")
    if request.suffix is not None:
        raise refuse_unsupported("suffix", "nothing is inserted between two texts")
    if request.logprobs is not None:
        # 0 asks for those of the tokens that were picked.
        raise refuse_unsupported("logprobs", "no engine that completes texts tells them")
    for name in ("n", "best_of"):
        if (getattr(request, name) or 1) > 1:
            raise refuse_unsupported(name, "one completion a request")
    request.check(request.max_tokens or DEFAULT_LONGEST)
    return request
