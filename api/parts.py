"""What stands behind the API: the database, the event hub, Temporal, Triton.

The API starts and answers without any of them. Each is opened in the background until it is
there, looked at every few seconds, and named in `/readyz` and in the 503 of a request that needs
it. Nothing has to be restarted when one comes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

from temporalio.client import Client, Plugin

from api.feeds import Feeds
from api.key_use import KeyUse
from api.lane import Lane, MakeLane
from api.openai.callers import Callers
from api.problems import Part, unavailable
from inference.client import TritonClient
from safety.policy import Policy
from settings import Settings
from store.catalogue_view import CatalogueView
from store.database import Database
from store.errors import DatabaseUnavailable
from store.events import EventHub
from store.held_texts import HeldTexts
from store.payloads import PayloadShelf
from store.policy_view import PolicyView
from store.pricing import models_of
from store.redactions import RedactionShelf
from store.screening import Screening
from workflows.client import connect_kwargs
from workflows.sealing import Sealer

__all__ = ["PartState", "Parts"]

log = logging.getLogger("overline.api")

_CHECK_EVERY_S = 2.0
_CHECK_TIMEOUT_S = 3.0


@dataclass
class PartState:
    """Whether a part answered when it was last looked at."""

    ready: bool = False
    detail: str = "not checked yet"


@dataclass
class Parts:
    """Connections of one API process.

    Attributes:
        settings: Settings of the process.
        plugins: Plugins of the Temporal client: tracing.
        stopping: Set when the process ends; open streams end on it.
        states: What the last look at every part said.
        lane: Makes calls in this process, if it was given one to.
        key_use: Which keys were used a moment ago.
        callers: Tokens that were good a moment ago.
    """

    settings: Settings
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    states: dict[Part, PartState] = field(
        default_factory=lambda: {
            "database": PartState(),
            "temporal": PartState(),
            "triton": PartState(),
        }
    )
    plugins: Sequence[Plugin] = ()
    make_lane: MakeLane | None = None
    lane: Lane | None = None
    key_use: KeyUse = field(default_factory=KeyUse)
    callers: Callers = field(init=False)
    _database: Database | None = None
    _shelf: PayloadShelf | None = None
    _catalogue: CatalogueView | None = None
    _screening: Screening | None = None
    _held: HeldTexts | None = None
    _hub: EventHub | None = None
    _feeds: Feeds | None = None
    _temporal: Client | None = None
    _triton: dict[str, TritonClient] = field(default_factory=dict)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Let the calls' tokens be noted where all others are."""
        self.callers = Callers(self.key_use)

    async def start(self) -> None:
        """Prepare every connection and begin to watch the parts; waits for none of them."""
        settings = self.settings
        url = settings.database_url.get_secret_value()
        # No connection is opened before it is needed, so a part that is down does not keep the
        # API down, and a request that needs it gets the 503 that names it.
        self._database = await Database.open(
            url, min_size=0, max_size=settings.database_pool_size, name="overline-api"
        )
        self._shelf = PayloadShelf(self._database, keep=timedelta(days=settings.keep_days))
        self._catalogue = CatalogueView(self._database)
        sealer = self.sealer
        self._screening = Screening(
            self._database,
            PolicyView(self._database, Policy.of),
            RedactionShelf(self._database, sealer),
        )
        self._held = HeldTexts(self._database, sealer)
        if self.make_lane is not None:
            self.lane = self.make_lane(settings, self._database)
            await self.lane.start()
        self.run_in_background(self.key_use.write(self._database))
        self._hub = EventHub(url, None if self.lane is None else self.lane.cancel)
        self._feeds = Feeds(self._database, self._screening, self._hub)
        await self._hub.start()
        self._temporal = await Client.connect(
            settings.temporal_address,
            lazy=True,
            plugins=list(self.plugins),
            **connect_kwargs(settings, self._shelf),
        )
        for part, look in (
            ("database", self._look_at_database),
            ("temporal", self._look_at_temporal),
            ("triton", self._look_at_triton),
        ):
            self.run_in_background(self._watch(part, look))  # type: ignore[arg-type]

    def run_in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work until the process ends."""
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """End the background work and close every connection."""
        self.stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.lane is not None:
            await self.lane.stop()
        if self._hub is not None:
            await self._hub.close()
        if self._database is not None:
            await self._database.close()
        for client in self._triton.values():
            await client.close()

    @property
    def catalogue(self) -> CatalogueView:
        """Models, prices and routes."""
        assert self._catalogue is not None
        return self._catalogue

    @property
    def screening(self) -> Screening:
        """Safety policies, and what was taken out of texts."""
        if self._screening is None:
            raise unavailable("database")
        return self._screening

    @cached_property
    def sealer(self) -> Sealer:
        """What the payload keys do outside of Temporal."""
        return Sealer(self.settings)

    @property
    def held(self) -> HeldTexts:
        """Texts that a person must allow first."""
        if self._held is None:
            raise unavailable("database")
        return self._held

    @property
    def shelf(self) -> PayloadShelf:
        """Payloads too large for a history."""
        if self._shelf is None:
            raise unavailable("database")
        return self._shelf

    @property
    def database(self) -> Database:
        """The database; its calls raise `DatabaseUnavailable` when it is down."""
        if self._database is None:
            raise unavailable("database")
        return self._database

    @property
    def feeds(self) -> Feeds:
        """The streams of events of tasks, shared by their readers."""
        if self._feeds is None:
            raise unavailable("database")
        return self._feeds

    @property
    def hub(self) -> EventHub:
        """Wakes readers of what is new."""
        if self._hub is None:
            raise unavailable("database")
        return self._hub

    @property
    def temporal(self) -> Client:
        """The Temporal client; its calls may fail when Temporal is down."""
        if self._temporal is None:
            raise unavailable("temporal")
        return self._temporal

    async def require_engine(self, route: str, model: str | None) -> None:
        """Refuse work while nothing that could do it answers; upstreams are not asked before.

        Args:
            route: The route that chooses a model.
            model: The model, if it is named.

        Raises:
            ProblemError: No replica of Triton answered the last check (503).
        """
        if self.states["triton"].ready:
            return
        catalogue = await self.catalogue.read()
        if not any(
            deployment.is_upstream
            for name in models_of(catalogue, route, model)
            for deployment in catalogue.deployments_of(name)
        ):
            raise unavailable("triton", retry_after_s=5)

    def require_triton(self) -> None:
        """Refuse work that needs a model while no replica answers.

        Raises:
            ProblemError: No replica answered the last check (503).
        """
        if not self.states["triton"].ready:
            raise unavailable("triton", retry_after_s=5)

    async def _watch(self, part: Part, look: Callable[[], Coroutine[Any, Any, None]]) -> None:
        state = self.states[part]
        slow = 0
        while True:
            was = state.ready
            try:
                async with asyncio.timeout(_CHECK_TIMEOUT_S + 1):
                    await look()
                state.ready, state.detail, slow = True, "ready", 0
            except Exception as exc:
                # A machine that is busy answers late; only twice late is away.
                slow += _is_late(exc)
                if was and slow == 1:
                    await asyncio.sleep(0.5)
                    continue
                # The kind of the exception only: its text can hold an address with a password.
                state.ready, state.detail = False, f"does not answer ({type(exc).__name__})"
            if was != state.ready:
                log.log(
                    logging.INFO if state.ready else logging.WARNING,
                    "part %s %s",
                    part,
                    "is ready" if state.ready else state.detail,
                )
            await asyncio.sleep(_CHECK_EVERY_S if state.ready else 0.5)

    async def _look_at_database(self) -> None:
        await self.database.run_untenanted("select 1 as one")

    async def _look_at_temporal(self) -> None:
        await self.temporal.service_client.check_health()

    async def _look_at_triton(self) -> None:
        """A replica counts when one of its language models answers.

        Triton goes on saying that it is ready when the process of a model is dead, so the models
        are asked themselves.
        """
        deployed = await self._language_models()
        asked = [self._ask(url, model) for url, model in deployed] or [
            self._triton_at(url).server_ready(_CHECK_TIMEOUT_S) for url in self.settings.triton_urls
        ]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        if not any(answer is True for answer in answers):
            raise ConnectionError

    def _triton_at(self, url: str) -> TritonClient:
        if url not in self._triton:
            self._triton[url] = TritonClient(url)
        return self._triton[url]

    async def _ask(self, url: str, model: str) -> bool:
        await self._triton_at(url).ping(model, _CHECK_TIMEOUT_S)
        return True

    async def _language_models(self) -> set[tuple[str, str]]:
        """Address and Triton's name of every model that answers; none without a database."""
        try:
            catalogue = await self.catalogue.read()
        except DatabaseUnavailable:
            return set()
        return {
            (url, deployment.triton_model)
            for deployment in catalogue.deployments.values()
            for url in deployment.urls
            if deployment.enabled
            and not deployment.is_upstream
            and "embedding" not in catalogue.models[deployment.model].capabilities
        }


def _is_late(error: Exception) -> bool:
    return isinstance(error, TimeoutError) or getattr(error, "code", "") == "deadline"
