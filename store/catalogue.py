"""What can answer, where, at what price: the same for every organisation.

Processes read it; only an operator's connection may write it (`overline up`, after migrating).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from store.database import Database
from store.text import jsonb

UPSTREAM = "openai"
"""The engine of deployments that speak OpenAI's protocol."""


@dataclass(frozen=True, slots=True)
class Model:
    """A registered model.

    Attributes:
        name: a name that ends in `*` stands for every name that begins with the rest of it.
        version: changes whenever the weights or their template do.
        context_window: tokens, prompt and answer together.
        max_output_tokens: most tokens of one answer (0 for embedding models).
        capabilities: of `chat`, `completion`, `json_schema`, `grammar`, `tools`, `vision`,
            `embedding`.
    """

    name: str
    version: str
    context_window: int
    max_output_tokens: int
    capabilities: tuple[str, ...]
    tokenizer_version: str
    licence: str


@dataclass(frozen=True, slots=True)
class Deployment:
    """A model on an engine, behind one or more Triton replicas (`host:port`) or an upstream's URL.

    Attributes:
        triton_model: the engine's own name of it. An upstream's may have a `*`, which stands for
            what the wildcard of the model stood for; none at all means the name that was asked for.
        deployment_class: Deployments of one class share a queue; empty: calls wait with all other
            work.
        slots: Requests the engine runs at a time, each replica.
        secret: name of the key an upstream is asked with.
        options: what else is to be known of an upstream; see `inference.upstream.options`.
    """

    id: str
    model: str
    engine: str
    urls: tuple[str, ...]
    triton_model: str
    enabled: bool = True
    deployment_class: str = ""
    slots: int = 1
    secret: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def is_upstream(self) -> bool:
        """Whether it speaks OpenAI's protocol, and is none of Triton's."""
        return self.engine == UPSTREAM

    def engine_model(self, name: str) -> str:
        """The engine's name of what was asked for by `name`."""
        if not self.triton_model:
            return name
        stem = self.model.removesuffix("*")
        return self.triton_model.replace("*", name[len(stem) :] if stem != self.model else "")


@dataclass(frozen=True, slots=True)
class Price:
    """A model's price in USD per million tokens from a date on.

    Attributes:
        reasoning_usd_per_million: of thoughts; None: they cost what all output does.
    """

    model: str
    input_usd_per_million: Decimal
    cached_input_usd_per_million: Decimal
    output_usd_per_million: Decimal
    valid_from: datetime
    reasoning_usd_per_million: Decimal | None = None


@dataclass(frozen=True, slots=True)
class Route:
    """A named rule of choice: candidates in order of preference, each with its conditions.

    A candidate is `{"model", "when": {"capabilities", "min_prompt_tokens", "max_prompt_tokens"},
    "max_usd_per_million_output"}`; everything but the model may be missing. Amounts are strings.
    """

    name: str
    description: str
    candidates: tuple[dict[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Everything at once.

    Attributes:
        prices: the price in force now, by model; a model without one cannot be billed.
        digest: changes whenever an answer might; cached answers do not outlive it.
    """

    models: dict[str, Model]
    deployments: dict[str, Deployment]
    prices: dict[str, Price]
    routes: dict[str, Route]
    digest: str

    def find(self, name: str) -> Model | None:
        """The model that a name means: its own, or the longest wildcard's that stands for it."""
        if "*" in name:
            return None
        exact = self.models.get(name)
        if exact is not None:
            return exact
        found = (
            m for m in self.models.values() if m.name[-1] == "*" and name.startswith(m.name[:-1])
        )
        return max(found, key=lambda m: len(m.name), default=None)

    def price_of(self, name: str) -> Price | None:
        """The price in force of the model that a name means."""
        model = self.find(name)
        return self.prices.get(model.name) if model is not None else None

    def deployments_of(self, name: str) -> list[Deployment]:
        """Enabled deployments of the model that a name means, in order of their ids."""
        model = self.find(name)
        if model is None:
            return []
        found = (d for d in self.deployments.values() if d.model == model.name and d.enabled)
        return sorted(found, key=lambda d: d.id)

    def class_slots(self) -> dict[str, int]:
        """Requests that the engines of each class run at a time, all their replicas together.

        A class whose deployments are all switched off counts as it did: calls may wait there still.
        """
        on: Counter[str] = Counter()
        off: Counter[str] = Counter()
        for d in self.deployments.values():
            if d.deployment_class:
                (on if d.enabled else off)[d.deployment_class] += d.slots * len(d.urls)
        return {**off, **on}


def catalogue_digest(
    models: Sequence[Model], deployments: Sequence[Deployment], routes: Sequence[Route]
) -> str:
    """SHA-256 over what can change an answer. Prices, addresses and on/off do not."""
    essence = {
        "models": sorted((asdict(m) for m in models), key=lambda m: str(m["name"])),
        "deployments": sorted([d.id, d.model, d.engine, d.triton_model] for d in deployments),
        "routes": sorted(([r.name, list(r.candidates)] for r in routes), key=lambda r: str(r[0])),
    }
    return hashlib.sha256(json.dumps(essence, sort_keys=True, default=str).encode()).hexdigest()


async def sync_catalogue(
    db: Database,
    models: Sequence[Model],
    deployments: Sequence[Deployment],
    prices: Sequence[Price],
    routes: Sequence[Route],
) -> str:
    """Makes the catalogue what it should be, in one transaction, and returns its digest.

    Models and prices are added or changed, never removed: the ledger speaks of them. Deployments
    that are not listed are switched off, because calls may wait for them; such routes are removed.
    A price whose amounts changed is filed as a new one from its own `valid_from` on: a booked call
    keeps the price it was booked at.

    Args:
        db: an operator's database (admin URL); the processes' role may not write here.
    """
    digest = catalogue_digest(models, deployments, routes)
    statements: list[tuple[str, Sequence[Any]]] = [
        ("select pg_advisory_xact_lock(hashtext('overline.catalogue'))", ())
    ]
    statements += [
        (
            (
                "insert into models as m values (%s, %s, %s, %s, %s, %s, %s)"
                " on conflict (name) do update set version = excluded.version,"
                " context_window = excluded.context_window,"
                " max_output_tokens = excluded.max_output_tokens,"
                " capabilities = excluded.capabilities,"
                " tokenizer_version = excluded.tokenizer_version, licence = excluded.licence"
            ),
            (
                m.name,
                m.version,
                m.context_window,
                m.max_output_tokens,
                list(m.capabilities),
                m.tokenizer_version,
                m.licence,
            ),
        )
        for m in models
    ]
    statements.append(
        (
            "update deployments set enabled = false where deployment <> all (%s::text[])",
            ([d.id for d in deployments],),
        )
    )
    statements += [
        (
            (
                "insert into deployments (deployment, model, engine, urls, triton_model, enabled,"
                " class, slots, secret, options)"
                " values (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)"
                " on conflict (deployment) do update set model = excluded.model,"
                " engine = excluded.engine, urls = excluded.urls,"
                " triton_model = excluded.triton_model, enabled = excluded.enabled,"
                " class = excluded.class, slots = excluded.slots, secret = excluded.secret,"
                " options = excluded.options"
            ),
            (
                d.id,
                d.model,
                d.engine,
                list(d.urls),
                d.triton_model,
                d.enabled,
                d.deployment_class,
                d.slots,
                d.secret,
                jsonb(d.options),
            ),
        )
        for d in deployments
    ]
    statements += [
        (
            (
                "insert into prices values (%s, %s, %s, %s, %s, %s)"
                " on conflict (model, valid_from) do update set"
                " input_usd_per_million = excluded.input_usd_per_million,"
                " cached_input_usd_per_million = excluded.cached_input_usd_per_million,"
                " output_usd_per_million = excluded.output_usd_per_million,"
                " reasoning_usd_per_million = excluded.reasoning_usd_per_million"
            ),
            (
                p.model,
                p.valid_from,
                p.input_usd_per_million,
                p.cached_input_usd_per_million,
                p.output_usd_per_million,
                p.reasoning_usd_per_million,
            ),
        )
        for p in prices
    ]
    statements.append(
        ("delete from routes where name <> all (%s::text[])", ([r.name for r in routes],))
    )
    statements += [
        (
            (
                "insert into routes values (%s, %s, %s) on conflict (name) do update"
                " set description = excluded.description, candidates = excluded.candidates"
            ),
            (r.name, r.description, jsonb(json.loads(json.dumps(r.candidates, default=str)))),
        )
        for r in routes
    ]
    statements.append(
        (
            (
                "insert into catalogue_state (digest) values (%s) on conflict (only_row) do update"
                " set digest = excluded.digest, changed_at = now(),"
                " changed_in = pg_current_xact_id()"
                " where catalogue_state.digest <> excluded.digest"
            ),
            (digest,),
        )
    )
    await db.run_untenanted_many(statements)
    return digest


async def load_catalogue(db: Database) -> Catalogue:
    """Reads the whole catalogue in one round trip. Not synced yet: empty, with an empty digest."""
    models, deployments, prices, routes, state = await db.run_untenanted_many(
        [
            ("select * from models", ()),
            (
                (
                    "select deployment as id, model, engine, urls, triton_model, enabled,"
                    " class as deployment_class, slots, secret, options from deployments"
                ),
                (),
            ),
            (
                (
                    "select distinct on (model) * from prices where valid_from <= now()"
                    " order by model, valid_from desc"
                ),
                (),
            ),
            ("select * from routes", ()),
            ("select digest from catalogue_state", ()),
        ]
    )
    for row in models:
        row["capabilities"] = tuple(row["capabilities"])
    for row in deployments:
        row["urls"] = tuple(row["urls"])
    for row in routes:
        row["candidates"] = tuple(row["candidates"])
    return Catalogue(
        models={row["name"]: Model(**row) for row in models},
        deployments={row["id"]: Deployment(**row) for row in deployments},
        prices={row["model"]: Price(**row) for row in prices},
        routes={row["name"]: Route(**row) for row in routes},
        digest=state[0]["digest"] if state else "",
    )
