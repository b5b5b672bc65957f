"""What a worker's activities share: the database, the engines, tokenizers, the catalogue."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from activities.definitions import Definitions
from activities.egress import Egress
from activities.judging import Judging
from activities.upstreams import UpstreamPool
from inference.client import TritonClient
from inference.tokenizers import ModelTokenizer, load_tokenizer
from inference.upstream.keys import UpstreamKeys
from inference.upstream.messages import Upstream
from safety.policy import Policy
from settings import Settings
from store.catalogue import Deployment
from store.catalogue_view import CatalogueView
from store.database import Database
from store.held_texts import HeldTexts
from store.policy_view import PolicyView
from store.redactions import RedactionShelf
from store.screening import Screening
from workflows.sealing import Sealer

if TYPE_CHECKING:
    from inference.upstream.client import UpstreamClient

__all__ = ["Dependencies", "Engines", "Tokenizers"]


class Engines:
    """One client, hence one gRPC channel, per Triton replica."""

    def __init__(self) -> None:
        self._clients: dict[str, TritonClient] = {}

    def at(self, url: str) -> TritonClient:
        """Return the client of the replica at `url` (`host:port`)."""
        if url not in self._clients:
            self._clients[url] = TritonClient(url)
        return self._clients[url]

    async def close(self) -> None:
        """Close every channel."""
        for client in self._clients.values():
            await client.close()
        self._clients.clear()


class Tokenizers:
    """The models' own tokenizers and templates, each loaded once, off the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.models_folder
        self._loaded: dict[str, ModelTokenizer] = {}
        self._lock = asyncio.Lock()

    async def of(self, model: str) -> ModelTokenizer:
        """Return the tokenizer of a registered model.

        Raises:
            FileNotFoundError: Its artefacts are not in the models folder.
        """
        if model not in self._loaded:
            async with self._lock:
                if model not in self._loaded:
                    self._loaded[model] = await asyncio.to_thread(
                        load_tokenizer, self._folder / model
                    )
        return self._loaded[model]


@dataclass(frozen=True)
class Dependencies:
    """Everything an activity may need; made once a process."""

    settings: Settings
    db: Database
    engines: Engines = field(default_factory=Engines)
    upstreams: UpstreamPool = field(default_factory=UpstreamPool)
    upstream_keys: UpstreamKeys = field(init=False)
    catalogue: CatalogueView = field(init=False)
    tokenizers: Tokenizers = field(init=False)
    definitions: Definitions = field(init=False)
    egress: Egress = field(init=False)
    screening: Screening = field(init=False)
    judging: Judging = field(init=False)
    held: HeldTexts = field(init=False)
    sealer: Sealer = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "catalogue", CatalogueView(self.db))
        object.__setattr__(self, "upstream_keys", UpstreamKeys(self.settings.upstream_keys_file))
        object.__setattr__(self, "tokenizers", Tokenizers(self.settings))
        object.__setattr__(self, "definitions", Definitions(self.db))
        object.__setattr__(self, "egress", Egress(self.settings.egress_allow))
        sealer = Sealer(self.settings)
        object.__setattr__(self, "sealer", sealer)
        object.__setattr__(self, "judging", Judging(self.db))
        object.__setattr__(self, "held", HeldTexts(self.db, sealer))
        policies, shelf = PolicyView(self.db, Policy.of), RedactionShelf(self.db, sealer)
        object.__setattr__(self, "screening", Screening(self.db, policies, shelf))

    async def upstream(self, deployment: Deployment, url: str) -> UpstreamClient:
        """Return the client of an upstream, with its key of today.

        Raises:
            EngineDenied: Its key is not there.
        """
        key = self.upstream_keys.of(deployment.secret)
        return await self.upstreams.at(Upstream(deployment.model, url, key))

    async def preload(self) -> None:
        """Load the tokenizers of the served models, so that no task waits for them."""
        for model in self.settings.models:
            await self.tokenizers.of(model)

    async def close(self) -> None:
        """Close what was opened."""
        await self.engines.close()
        await self.upstreams.close()
        await self.db.close()
