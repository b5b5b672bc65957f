"""What a worker's activities share: the database, the engines, tokenizers, the catalogue."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from inference.client import TritonClient
from inference.tokenizers import ModelTokenizer, load_tokenizer
from settings import Settings
from store.catalogue import Catalogue, load_catalogue
from store.database import Database

__all__ = ["CatalogueCache", "Dependencies", "Engines", "Tokenizers"]

# Prices and routes change rarely; an old one is used for at most this long.
CATALOGUE_SECONDS = 5.0


class CatalogueCache:
    """The catalogue as it was at most `CATALOGUE_SECONDS` ago, for no round trip a call."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._loaded_at = float("-inf")
        self._catalogue: Catalogue | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> Catalogue:
        """Return the catalogue.

        Raises:
            DatabaseUnavailable: It was never read, and Postgres cannot be reached.
        """
        async with self._lock:
            if self._catalogue is None or time.monotonic() - self._loaded_at > CATALOGUE_SECONDS:
                self._catalogue = await load_catalogue(self._db)
                self._loaded_at = time.monotonic()
            return self._catalogue


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
    catalogue: CatalogueCache = field(init=False)
    tokenizers: Tokenizers = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "catalogue", CatalogueCache(self.db))
        object.__setattr__(self, "tokenizers", Tokenizers(self.settings))

    async def preload(self) -> None:
        """Load the tokenizers of the served models, so that no task waits for them."""
        for model in self.settings.models:
            await self.tokenizers.of(model)

    async def close(self) -> None:
        """Close what was opened."""
        await self.engines.close()
        await self.db.close()
