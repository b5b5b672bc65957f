"""A caller as the API has them: submits, watches, waits, and comes back after every interruption.

It knows the public REST API and nothing else, so it can be kept going while parts are killed.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Self
from uuid import UUID, uuid4

import httpx2

from store.provision import create_key, create_organisation, create_team

__all__ = [
    "PAUSE_S",
    "Caller",
    "Event",
    "Refused",
    "Unavailable",
    "Watcher",
    "ask",
    "choose",
    "say",
    "words",
]

FINAL = frozenset({"task.succeeded", "task.failed", "task.cancelled"})
PAUSE_S = 0.1


def say(text: str, **attributes: str | int | float) -> str:
    """Return a directive that has the scripted engine say `text`."""
    more = "".join(f" {name}={value}" for name, value in attributes.items())
    return f"[[say text={json.dumps(text)}{more}]]"


def choose(choice: dict[str, str], **attributes: str | int | float) -> str:
    """Return a directive that has the scripted engine choose a tool."""
    more = "".join(f" {name}={value}" for name, value in attributes.items())
    return f"[[call text={json.dumps(json.dumps(choice))}{more}]]"


def choose_all(*choices: dict[str, Any], **attributes: str | int | float) -> str:
    """Return a directive that has the scripted engine choose several calls in one step."""
    more = "".join(f" {name}={value}" for name, value in attributes.items())
    return f"[[call text={json.dumps(json.dumps(list(choices)))}{more}]]"


def ask(agent: str, question: str, **attributes: str | int | float) -> str:
    """Return a directive that has the scripted engine ask a sub-agent."""
    more = "".join(f" {name}={value}" for name, value in attributes.items())
    choice = json.dumps({"tool": f"agent.{agent}", "arguments": {"input": question}})
    return f"[[call text={json.dumps(choice)}{more}]]"


def words(count: int) -> str:
    """Return a text of that many words, each unlike the others: a gap or a repeat shows."""
    return " ".join(f"w{number:03}" for number in range(count))


class Refused(Exception):
    """The API refused a request; `problem` is its document."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"{response.status_code}: {response.text}")
        self.status = response.status_code
        self.problem: dict[str, Any] = response.json()


@dataclass(frozen=True)
class Event:
    """One event of a task's stream."""

    id: str
    type: str
    seq: int
    step: int
    payload: dict[str, Any]


@dataclass
class Watcher:
    """Reads a task's events to their end, reconnecting with the last id it saw.

    Attributes:
        events: What has come so far, repeats included if there should be any.
        connections: How often it connected.
    """

    caller: Caller
    task_id: str
    events: list[Event] = field(default_factory=list)
    connections: int = 0
    _reading: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._reading is not None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def until(self, holds: Callable[[Watcher], bool], *, limit_s: float = 60) -> None:
        """Wait until what was read is as wished."""
        deadline = time.monotonic() + limit_s
        while not holds(self):
            assert time.monotonic() < deadline, (
                f"not within {limit_s} s; read {[event.type for event in self.events]}"
            )
            if self._reading is not None and self._reading.done():
                self._reading.result()
                assert holds(self), f"the stream ended: {[event.type for event in self.events]}"
            await asyncio.sleep(0.01)

    async def to_end(self, *, limit_s: float = 90) -> Event:
        """Wait for the last event and return it."""
        await self.until(lambda seen: seen.ended, limit_s=limit_s)
        return self.events[-1]

    @property
    def ended(self) -> bool:
        """Whether the last event has come."""
        return bool(self.events) and self.events[-1].type in FINAL

    def text(self, step: int = 1) -> str:
        """What a step has said, from its last reset on."""
        said = ""
        for event in self.events:
            if event.step == step and event.type == "reset":
                said = ""
            elif event.step == step and event.type == "text":
                said += event.payload["text"]
        return said

    def assert_once_and_in_order(self) -> None:
        """Every event of the stream came, once, in order."""
        assert [event.seq for event in self.events] == list(range(1, len(self.events) + 1))

    async def _read(self) -> None:
        while not self.ended:
            self.connections += 1
            try:
                async for event in self.caller.stream(self.task_id, self._last()):
                    self.events.append(event)
            except (httpx2.HTTPError, OSError, Unavailable):
                pass
            if not self.ended:
                await asyncio.sleep(PAUSE_S)

    def _last(self) -> str | None:
        return self.events[-1].id if self.events else None


class Unavailable(Exception):
    """The API is not there, or says that a part behind it is not."""


@dataclass
class Caller:
    """A tenant of its own and a client that does not give up.

    Attributes:
        organisation_id: The tenant.
        key_id: Its only key.
        patience_s: Longest outage that it waits out.
    """

    base_url: str
    token: str
    organisation_id: UUID
    key_id: UUID
    patience_s: float = 60
    http: httpx2.AsyncClient = field(init=False)

    def __post_init__(self) -> None:
        self.http = httpx2.AsyncClient(
            base_url=self.base_url,
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=httpx2.Timeout(30, connect=5),
        )

    @classmethod
    def made(cls, admin_url: str, base_url: str, name: str = "caller") -> Caller:
        """Make an organisation with one team and one key, and its caller."""
        organisation = create_organisation(admin_url, f"{name} {uuid4()}")
        team = create_team(admin_url, organisation, "team")
        key = create_key(admin_url, organisation, team, "key")
        return cls(base_url, key.token, organisation, key.key_id)

    async def request(
        self, method: str, path: str, *, limit_s: float | None = None, **options: Any
    ) -> httpx2.Response:
        """Send a request, again and again while the API or a part behind it is away.

        Raises:
            Refused: It was answered with an error that is not an outage.
        """
        limit_s = self.patience_s if limit_s is None else limit_s
        deadline = time.monotonic() + limit_s
        while True:
            try:
                response = await self.http.request(method, path, **options)
                if response.status_code != 503:
                    break
            except (httpx2.HTTPError, OSError):
                pass
            assert time.monotonic() < deadline, f"{method} {path}: away for {limit_s} s"
            await asyncio.sleep(PAUSE_S)
        if response.status_code >= 400:
            raise Refused(response)
        return response

    async def submit(self, question: str | None = None, **fields: Any) -> str:
        """Submit a task; an idempotency key makes the repeats of it one."""
        body = ({} if question is None else {"input": question}) | fields
        headers = {"Idempotency-Key": str(uuid4())}
        accepted = await self.request("POST", "/v1/tasks", json=body, headers=headers)
        return str(accepted.json()["id"])

    async def task(self, task_id: str) -> dict[str, Any]:
        """Read a task."""
        read: dict[str, Any] = (await self.request("GET", f"/v1/tasks/{task_id}")).json()
        return read

    async def steps(self, task_id: str) -> list[dict[str, Any]]:
        """Read a task's steps."""
        read: list[dict[str, Any]] = (
            await self.request("GET", f"/v1/tasks/{task_id}/steps")
        ).json()["steps"]
        return read

    async def cancel(self, task_id: str) -> dict[str, Any]:
        """Ask a task to end."""
        read: dict[str, Any] = (await self.request("POST", f"/v1/tasks/{task_id}/cancel")).json()
        return read

    async def ended(self, task_id: str, *, limit_s: float = 90) -> dict[str, Any]:
        """Wait until a task has ended, and read it."""
        deadline = time.monotonic() + limit_s
        while (read := await self.task(task_id))["finished_at"] is None:
            assert time.monotonic() < deadline, f"not ended within {limit_s} s: {read}"
            await asyncio.sleep(0.05)
        return read

    async def answered(
        self, question: str | None = None, *, limit_s: float = 90, **fields: Any
    ) -> dict[str, Any]:
        """Submit a task that must succeed, and read it."""
        read = await self.ended(await self.submit(question, **fields), limit_s=limit_s)
        assert read["status"] == "succeeded", read
        return read

    def watch(self, task_id: str) -> Watcher:
        """Watch a task; use as an async context manager."""
        return Watcher(self, task_id)

    async def stream(self, task_id: str, after: str | None = None) -> AsyncIterator[Event]:
        """Read a task's events over one connection.

        Raises:
            Unavailable: It was answered with an outage.
        """
        headers = {"Last-Event-ID": after} if after else {}
        async with self.http.sse(f"/v1/tasks/{task_id}/events", headers=headers) as source:
            if source.response.status_code == 503:
                raise Unavailable
            assert source.response.status_code == 200, source.response.status_code
            async for event in source:
                if not event.data:
                    continue
                data = json.loads(event.data)
                yield Event(event.id, event.event, data["seq"], data["step"], data["payload"])
