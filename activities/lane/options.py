"""Which models may answer a call, best first, and the most it can cost. No I/O."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import msgspec

from activities.route_rules import Rule
from activities.transcript import PROMPT_FORMAT
from inference.upstream.estimate import most_tokens
from inference.upstream.options import options_of as upstream_options
from store.catalogue import Catalogue, Deployment, Model, Price
from store.pricing import dollars
from workflows.contracts.call import CallSpec
from workflows.errors import InvalidRequest, NotFound

__all__ = ["Option", "cache_key", "most_usd", "options_of"]

#: Engines under Triton that make single tokens more or less likely.
_BIASES = frozenset({"llama_cpp"})
#: What no model under Triton can do, with the value that asks for nothing.
_ONLY_UPSTREAM: Mapping[str, Sequence[Any]] = {
    "n": (None, 1),
    "logprobs": (None, False, 0),
    "reasoning_effort": (None, "none"),
    "verbosity": (None, "medium"),
    "prediction": (None,),
}
#: What a grammar leaves no room for: an answer that it binds ends where the grammar does.
_FREE_WORDS = ("stop", "min_tokens", "ignore_eos")


@dataclass(frozen=True, slots=True)
class Option:
    """A deployment that may answer, at one of its addresses.

    Attributes:
        name: The model's name as it was asked for, or as its route says it.
        model: The registered model that the name means.
        url: Which of the deployment's addresses is asked.
    """

    name: str
    model: Model
    deployment: Deployment
    price: Price
    url: str

    @property
    def is_upstream(self) -> bool:
        """Whether it reads text, and counts by itself; models under Triton read token ids."""
        return self.deployment.is_upstream

    @property
    def engine_model(self) -> str:
        """The engine's own name of it."""
        return self.deployment.engine_model(self.name)

    def longest(self, spec: CallSpec) -> int:
        """Longest answer of one choice, in tokens."""
        return min(spec.longest or self.model.max_output_tokens, self.model.max_output_tokens)


def options_of(catalogue: Catalogue, spec: CallSpec, turn: int = 0) -> list[Option]:
    """Return what may answer, in the order of the route; a deployment once for each address.

    Args:
        catalogue: What there is.
        spec: The call.
        turn: Any number of the call: calls are spread over a deployment's addresses by it.

    Raises:
        NotFound: There is no such model, or none that is deployed and has a price.
        InvalidRequest: None of them can do what is asked; says which parameter is meant.
    """
    found: list[Option] = []
    objection: InvalidRequest | NotFound | None = None
    for name in _names(catalogue, spec.model):
        model, price = catalogue.find(name), catalogue.price_of(name)
        if model is None or not {"chat", "completion"} & set(model.capabilities):
            continue
        if price is None:
            objection = objection or NotFound(
                "The model has no price, so it is never served.",
                param="model",
                code="model_unpriced",
            )
            continue
        for deployment in catalogue.deployments_of(name):
            urls = deployment.urls
            first = turn % len(urls)
            some = [
                Option(name, model, deployment, price, url)
                for url in (*urls[first:], *urls[:first])
            ]
            why_not = _objection(some[0], spec)
            if why_not is None:
                found += some
            objection = objection or why_not
    if found:
        return found
    raise objection or NotFound(
        "The model does not exist, or is not deployed.",
        param="model",
        code="model_not_found",
    )


def _names(catalogue: Catalogue, asked: str) -> list[str]:
    model = catalogue.find(asked)
    if model is not None and asked not in catalogue.routes:
        return [asked]
    route = catalogue.routes.get(asked)
    if route is None:
        return []
    return [Rule.model_validate(candidate).model for candidate in route.candidates]


def _objection(option: Option, spec: CallSpec) -> InvalidRequest | None:
    able = set(option.model.capabilities)
    asked = spec.parameters
    if spec.prompt is not None and (option.is_upstream or "completion" not in able):
        return _cannot("prompt", "the model only takes chats")
    pictures = _picture(spec.messages)
    if pictures is not None and "vision" not in able:
        return _cannot(pictures, "the model reads text only")
    form = asked.get("response_format")
    if form and form.get("type") != "text" and "json_schema" not in able:
        return _cannot("response_format", "the model's answers cannot be held to a form")
    if asked.get("tools") and not {"tools", "grammar"} & able:
        return _cannot("tools", "the model does not call functions")
    if option.is_upstream:
        return None
    for name, nothing in _ONLY_UPSTREAM.items():
        if asked.get(name) not in nothing:
            return _cannot(name, "the model's engine cannot")
    if asked.get("logit_bias") and option.deployment.engine not in _BIASES:
        return _cannot("logit_bias", "the model's engine cannot")
    bound = _bound_by(spec)
    if bound is None:
        return None
    if bound == "response_format" and asked.get("tools"):
        return _cannot("response_format", "the model's engine cannot beside 'tools'")
    for name in _FREE_WORDS:
        if asked.get(name):
            return _cannot(name, f"the model's engine cannot beside '{bound}'")
    return None


def _bound_by(spec: CallSpec) -> str | None:
    """Return the parameter by which a grammar binds the answer of a model under Triton, if any."""
    asked = spec.parameters
    form = asked.get("response_format")
    if form and form.get("type") != "text":
        return "response_format"
    return "tools" if asked.get("tools") and asked.get("tool_choice") != "none" else None


def _cannot(param: str, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{param}' is not supported: {why}.", param=param, code="unsupported_parameter"
    )


def _picture(messages: Sequence[Mapping[str, Any]]) -> str | None:
    for number, message in enumerate(messages):
        content = message.get("content")
        if isinstance(content, list):
            for place, part in enumerate(content):
                if part.get("type") == "image_url":
                    return f"messages[{number}].content[{place}]"
    return None


def most_usd(
    options: Sequence[Option], spec: CallSpec, *, prompt_tokens: int | None, likely: int = 0
) -> Decimal:
    """Return the most a call can cost, whichever of its options answers, rounded up.

    Args:
        options: What may answer.
        spec: The call.
        prompt_tokens: Tokens of the prompt for the first option, where they are known.
        likely: Likely tokens of the prompt. Where those fit a model's window, no more than the
            window is read; where they do not, its upstream says, and it may read them all.
    """
    bound = prompt_tokens
    most = Decimal(0)
    # It costs the same at every address of a deployment.
    asked = {(option.name, option.deployment.id): option for option in options}
    for number, option in enumerate(asked.values()):
        if bound is None or number > 0:
            # No tokenizer makes more tokens of a text than it has bytes.
            around = upstream_options(option.deployment.options)
            bound = most_tokens(
                spec.messages or [{"content": spec.prompt}],
                spec.parameters,
                around_message=around.message_tokens,
                around_prompt=around.prompt_tokens,
            )
        window = option.model.context_window
        read = bound if option.is_upstream and likely > window else min(bound, window)
        price = option.price
        taken_in = max(price.input_usd_per_million, price.cached_input_usd_per_million)
        written = max(price.output_usd_per_million, price.reasoning_usd_per_million or Decimal(0))
        cost = taken_in * read + written * option.longest(spec) * spec.choices
        most = max(most, cost)
    return dollars(most)


def cache_key(spec: CallSpec, wish: str) -> str | None:
    """Return where an equal call's answer would be kept; None when it must be made anew.

    A sampled answer is one of many, and what a call of functions leads to is the caller's: those
    are kept only when the caller asks for it. The tenant is a column of its own beside the key.

    Args:
        spec: The call.
        wish: `auto`, `on` or `off`.
    """
    asked = spec.parameters
    greedy = asked.get("temperature") == 0
    plain = not asked.get("tools") and spec.choices == 1 and not asked.get("logprobs")
    if wish == "off" or (wish == "auto" and not (greedy and plain)):
        return None
    essence = [PROMPT_FORMAT, spec.model, spec.messages, spec.prompt, asked]
    if spec.policy:
        # What another policy let through need not be what this one does.
        essence.append(spec.policy)
    return "call:" + hashlib.sha256(msgspec.json.encode(essence, order="deterministic")).hexdigest()
