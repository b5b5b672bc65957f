"""How a request for a response calls what a chat completion calls otherwise.

Behind the route both are one call, which knows the names of chat completions; where an error
leaves, it is told by the names that its reader has written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from api.openai.errors import OpenAIError
from api.openai.response_items import Origin

__all__ = ["ResponseNames"]

_NAMES: Mapping[str, str] = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    "tool_call_id": "call_id",
    "verbosity": "text.verbosity",
}
#: The same by their beginnings: what comes after them stays.
_BEGINNINGS: Sequence[tuple[re.Pattern[str], str]] = (
    (re.compile(r"response_format\.(?:json_schema\b\.?)?"), "text.format."),
    (re.compile(r"(tools\[\d+\])\.function\b"), r"\1"),
    (re.compile(r"tool_choice\.function\b"), "tool_choice"),
)
_MESSAGE = re.compile(r"messages\[(\d+)\](.*)")
_CALL = re.compile(r"\.tool_calls\[(\d+)\](.*)")
_OF_A_CALL: Mapping[str, str] = {
    ".id": ".call_id",
    ".function.name": ".name",
    ".function.arguments": ".arguments",
}
_QUOTED = re.compile(r"'([a-z_]+[\w.\[\]]*)'")


class ResponseNames:
    """The names of one request.

    Args:
        origins: Where the messages of its conversation come from.
        logprobs: The parameter that asks for them.
    """

    def __init__(self, origins: Sequence[Origin], logprobs: str = "include") -> None:
        self._origins = origins
        self._logprobs = logprobs

    def told(self, error: OpenAIError) -> OpenAIError:
        """Return an error by the names of the request."""
        return OpenAIError(
            error.status,
            _QUOTED.sub(lambda found: f"'{self.of(found[1])}'", error.message),
            code=error.code,
            param=None if error.param is None else self.of(error.param),
            type=error.type,
            headers=error.headers,
            facts=error.facts,
        )

    def of(self, param: str) -> str:
        """Return how the request calls a parameter of a chat completion."""
        if (message := _MESSAGE.fullmatch(param)) is not None:
            return self._of_message(int(message[1]), message[2])
        if param == "logprobs":
            return self._logprobs
        if param in _NAMES:
            return _NAMES[param]
        for beginning, name in _BEGINNINGS:
            if beginning.match(param):
                return beginning.sub(name, param, count=1).rstrip(".")
        return param

    def _of_message(self, number: int, rest: str) -> str:
        if number >= len(self._origins):
            return "input"
        origin = self._origins[number]
        if not origin.place.endswith("]"):
            # A text as a whole, or what another response has said.
            return origin.place
        if (call := _CALL.fullmatch(rest)) is not None and int(call[1]) < len(origin.calls):
            return origin.calls[int(call[1])] + _OF_A_CALL.get(call[2], call[2])
        if rest == ".tool_calls" and origin.calls:
            return origin.calls[0]
        if rest == ".tool_call_id":
            return f"{origin.place}.call_id"
        for ours, theirs in (
            (".content", f".{origin.said}"),
            (".image_url.url", ".image_url"),
            (".image_url.detail", ".detail"),
        ):
            rest = rest.replace(ours, theirs, 1)
        return origin.place + rest
