"""Which models exist, what they can do, what they cost, and which route leads to which.

This is what a fresh installation knows; the catalogue in Postgres is filled from it and is the
truth from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal

Capability = Literal["chat", "completion", "json_schema", "grammar", "embedding"]
EngineName = Literal["llama_cpp", "tensorrt_llm", "scripted", "onnx"]


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens, valid from a moment on."""

    input_usd_per_million: Decimal
    cached_input_usd_per_million: Decimal
    output_usd_per_million: Decimal
    valid_from: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Model:
    """One registered model.

    Attributes:
        name: Public name; the model under Triton has the same.
        version: Identity of the weights' release.
        engine: What runs it in the embedded stack.
        context_window: Most tokens of prompt and output together, as served here.
        max_output_tokens: Most tokens of one generation.
        slots: Requests the engine batches at a time.
        licence: Licence of the weights.
        dimensions: Length of the vectors of an embedding model; 0 otherwise.
        default: Whether the embedded stack serves it unless told otherwise.
    """

    name: str
    version: str
    engine: EngineName
    context_window: int
    max_output_tokens: int
    capabilities: frozenset[Capability]
    licence: str
    price: Price
    slots: int = 1
    dimensions: int = 0
    default: bool = True

    @property
    def triton_model(self) -> str:
        """Name of the model under Triton."""
        return self.name

    @property
    def kind(self) -> Literal["generate", "embed"]:
        """Which contract it speaks."""
        return "embed" if "embedding" in self.capabilities else "generate"


@dataclass(frozen=True)
class Route:
    """A name callers may use instead of a model's.

    Attributes:
        candidates: Tried in order: {"model", "when": {...}, "max_usd_per_million_output"}.
    """

    name: str
    description: str
    candidates: tuple[Mapping[str, Any], ...] = field(default=())


def _price(input_usd: str, cached_usd: str, output_usd: str) -> Price:
    return Price(Decimal(input_usd), Decimal(cached_usd), Decimal(output_usd))


MODELS: Mapping[str, Model] = {
    model.name: model
    for model in (
        Model(
            name="smollm2-135m-instruct",
            version="q4_1",
            engine="llama_cpp",
            context_window=4096,
            max_output_tokens=2048,
            capabilities=frozenset({"chat", "completion", "json_schema", "grammar"}),
            licence="Apache-2.0",
            price=_price("0.02", "0.005", "0.08"),
            slots=8,
        ),
        Model(
            name="gemma-3-270m",
            version="q4_k_m",
            engine="llama_cpp",
            context_window=4096,
            max_output_tokens=2048,
            # A base model: it continues text and can be held to a grammar, but was not taught
            # to converse. Its template says so.
            capabilities=frozenset({"completion", "json_schema", "grammar"}),
            licence="Gemma",
            price=_price("0.04", "0.01", "0.16"),
            slots=4,
        ),
        Model(
            name="all-minilm-l6-v2",
            version="int8",
            engine="onnx",
            context_window=256,
            max_output_tokens=0,
            capabilities=frozenset({"embedding"}),
            licence="Apache-2.0",
            price=_price("0.01", "0.01", "0"),
            dimensions=384,
        ),
        Model(
            name="scripted",
            version="1",
            engine="scripted",
            context_window=131_072,
            max_output_tokens=65_536,
            capabilities=frozenset({"chat", "completion", "json_schema", "grammar"}),
            licence="Apache-2.0",
            price=_price("0.10", "0.02", "0.40"),
            slots=1024,
            default=False,
        ),
    )
}

DEFAULT_MODELS: tuple[str, ...] = tuple(m.name for m in MODELS.values() if m.default)

ROUTES: tuple[Route, ...] = (
    Route(
        name="default",
        description="A conversational model first; the larger base model when it is down.",
        candidates=(
            {"model": "smollm2-135m-instruct", "when": {"max_prompt_tokens": 4096}},
            {"model": "gemma-3-270m", "when": {"max_prompt_tokens": 4096}},
        ),
    ),
    *(
        Route(
            name=model.name,
            description=f"{model.name} and nothing else.",
            candidates=({"model": model.name},),
        )
        for model in MODELS.values()
        if model.kind == "generate"
    ),
)


def find(name: str) -> Model:
    """The model of that name.

    Raises:
        KeyError: With a message that names the known ones.
    """
    try:
        return MODELS[name]
    except KeyError:
        known = ", ".join(MODELS)
        raise KeyError(f"no model is called {name!r}; there are {known}") from None
