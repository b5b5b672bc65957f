"""The operator's file of upstreams: engines elsewhere that speak OpenAI's protocol, and routes.

    upstreams:
      - name: gpt-x                          # or `openai/*`: every name that begins like this
        base_url: https://api.openai.com/v1
        api_key: openai                      # a name in OVERLINE_UPSTREAM_KEYS_FILE
        upstream_model: gpt-x-2026           # by default the name that was asked for
        context_window: 128000
        max_output_tokens: 16384
        capabilities: [chat, tools, json_schema]
        prices: {from: 2026-01-01, input: 1.25, cached_input: 0.125, output: 10, reasoning: 10}
        options: {bytes_per_token: 2}
    routes:
      - name: best
        candidates: [{model: gpt-x}, {model: smollm2-135m-instruct}]

Prices are USD per million tokens. A model without `prices` is never served, because nobody could
say what it costs; one that costs nothing says so with zeros.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from inference.models.registry import MODELS
from inference.upstream.options import UpstreamOptions
from store import catalogue

__all__ = ["UpstreamFileError", "UpstreamRows", "read_upstreams"]


class UpstreamFileError(Exception):
    """The file cannot be used; the text says where and why."""


class UpstreamRows(BaseModel):
    """The catalogue's rows for what the file says."""

    models: list[catalogue.Model] = []
    deployments: list[catalogue.Deployment] = []
    prices: list[catalogue.Price] = []
    routes: list[catalogue.Route] = []

    @property
    def unpriced(self) -> list[str]:
        """Models that are never served, because they have no price."""
        priced = {price.model for price in self.prices}
        return [model.name for model in self.models if model.name not in priced]


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


def _base_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an http or https URL")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("must have no user, password, query or fragment; name a key with api_key")
    return value.rstrip("/")


def _money(value: object) -> object:
    # YAML reads 0.1 as a binary fraction; its shortest form is what was written.
    return str(value) if isinstance(value, float) else value


_Usd = Annotated[Decimal, BeforeValidator(_money), Field(ge=0, max_digits=18, decimal_places=9)]
_Name = Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[^*\s]*\*?$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Price(_Entry):
    valid_from: Annotated[datetime, BeforeValidator(lambda value: _moment(value))] = Field(
        alias="from", default=datetime(2026, 1, 1, tzinfo=UTC)
    )
    input: _Usd
    output: _Usd
    cached_input: _Usd | None = None
    reasoning: _Usd | None = None


def _moment(value: object) -> object:
    if isinstance(value, date) and not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime) and value.tzinfo is None:
        return value.replace(tzinfo=UTC)
    return value


class _Upstream(_Entry):
    name: _Name
    base_url: Annotated[
        list[Annotated[str, AfterValidator(_base_url)]],
        BeforeValidator(_as_list),
        Field(min_length=1),
    ]
    api_key: str | None = None
    upstream_model: Annotated[str, StringConstraints(max_length=200)] | None = None
    version: str = "1"
    context_window: int = Field(gt=0, le=100_000_000)
    max_output_tokens: int = Field(gt=0)
    capabilities: tuple[Literal["chat", "tools", "json_schema", "vision", "embedding"], ...] = (
        "chat",
        "tools",
    )
    prices: Annotated[list[_Price], BeforeValidator(_as_list)] = []
    options: UpstreamOptions = UpstreamOptions()

    @model_validator(mode="after")
    def _possible(self) -> _Upstream:
        if self.name in MODELS:
            raise ValueError(f"{self.name!r} is the name of a model that Overline serves itself")
        if self.max_output_tokens > self.context_window:
            raise ValueError("max_output_tokens is larger than context_window")
        if "*" in (self.upstream_model or "") and not self.name.endswith("*"):
            raise ValueError("upstream_model has a `*`, and name has none it could stand for")
        return self


class _Route(_Entry):
    name: Annotated[str, StringConstraints(min_length=1, max_length=128)]
    description: str = ""
    candidates: list[dict[str, Any]] = Field(min_length=1)


class _File(_Entry):
    upstreams: list[_Upstream] = []
    routes: list[_Route] = []


def read_upstreams(file: Path | None) -> UpstreamRows:
    """Return the rows of a file of upstreams; none of none.

    Raises:
        UpstreamFileError: It cannot be read, or says what cannot be.
    """
    if file is None:
        return UpstreamRows()
    try:
        said = _File.model_validate(yaml.safe_load(file.read_text("utf-8")) or {})
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UpstreamFileError(f"{file} cannot be read: {error}") from error
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()
        )
        raise UpstreamFileError(f"{file}: {problems}") from None
    names = [each.name for each in said.upstreams]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UpstreamFileError(f"{file}: named twice: {', '.join(twice)}")
    return UpstreamRows(
        models=[_model(each) for each in said.upstreams],
        deployments=[_deployment(each) for each in said.upstreams],
        prices=[_price(each.name, price) for each in said.upstreams for price in each.prices],
        routes=[
            catalogue.Route(each.name, each.description, tuple(each.candidates))
            for each in said.routes
        ],
    )


def _model(each: _Upstream) -> catalogue.Model:
    return catalogue.Model(
        name=each.name,
        version=each.version,
        context_window=each.context_window,
        max_output_tokens=each.max_output_tokens,
        capabilities=tuple(sorted(each.capabilities)),
        tokenizer_version="",
        licence="",
    )


def _deployment(each: _Upstream) -> catalogue.Deployment:
    return catalogue.Deployment(
        id=f"{each.name}-upstream",
        model=each.name,
        engine=catalogue.UPSTREAM,
        urls=tuple(each.base_url),
        triton_model=each.upstream_model or "",
        secret=each.api_key,
        options=each.options.model_dump(mode="json", exclude_defaults=True),
    )


def _price(model: str, price: _Price) -> catalogue.Price:
    return catalogue.Price(
        model=model,
        input_usd_per_million=price.input,
        # Where nothing is said, the upstream charges all input alike.
        cached_input_usd_per_million=(
            price.input if price.cached_input is None else price.cached_input
        ),
        output_usd_per_million=price.output,
        valid_from=price.valid_from,
        reasoning_usd_per_million=price.reasoning,
    )
