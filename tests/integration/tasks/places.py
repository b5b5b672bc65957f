"""An API and a worker on task queues of their own, where model calls have few slots."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from uuid import uuid4

from settings import Settings
from store.provision import ALL_SCOPES, create_key, create_organisation, create_team
from tests.integration.api.conftest import serving
from tests.integration.running import RunningStack
from tests.integration.tasks.caller import Caller
from tests.integration.tasks.test_worker_versions import working

__all__ = ["MODEL", "Place", "place"]

MODEL = "scripted"
#: What the scripted engine takes at a time; as many worker processes would share it, one slot each.
_ENGINE_SLOTS = 1024


@dataclass
class Place:
    """Where few calls run at a time, and the rest wait."""

    stack: RunningStack
    settings: Settings
    url: str
    callers: list[Caller] = field(default_factory=list)

    def team(self, *scopes: str) -> Caller:
        """Make a tenant of its own, with a key that has more scopes than usual."""
        admin = self.stack.admin_url
        organisation = create_organisation(admin, f"turns {uuid4()}")
        team = create_team(admin, organisation, "team")
        key = create_key(admin, organisation, team, "key", scopes=(*ALL_SCOPES, *scopes))
        made = Caller(self.url, key.token, organisation, key.key_id)
        self.callers.append(made)
        return made

    @property
    def queue(self) -> str:
        """The queue in which model calls wait."""
        return f"{self.settings.task_queue}-model-{MODEL}"


@asynccontextmanager
async def place(stack: RunningStack, slots: int) -> AsyncIterator[Place]:
    """Serve on queues of one's own, in this process, while the body runs."""
    changes = {"task_queue": f"turns-{uuid4().hex[:8]}", "workers": _ENGINE_SLOTS // slots}
    settings = stack.settings.model_copy(update=changes)
    async with serving(settings) as api, working(settings):
        made = Place(stack, settings, str(api.base_url))
        yield made
        for caller in made.callers:
            await caller.http.aclose()
