"""What the supervisor starts and watches: parts (processes) and steps (things done once)."""

from __future__ import annotations

import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field

from deploy.local.processes import Identity, Launch
from deploy.local.report import State

__all__ = ["Part", "PartStatus", "Say", "Step"]

Say = Callable[[str], None]


class Part(ABC):
    """One process of the stack.

    Attributes:
        name: Name in messages, states and logs.
        needs: Names of the parts and steps that come first.
        start_limit_s: Seconds from its start until it must be ready.
        stop_signal: Signal that asks it to end.
        patience_s: Seconds it gets to end before it is killed.
        health_every_s: Seconds between health checks.
        health_limit_s: Seconds one health check may take.
        failures_allowed: Failed checks in a row after which it is restarted.
        instead: For a part whose program comes from a wheel: what it is, the setting that points
            at a server of one's own, and an example of its value.
    """

    name: str
    needs: tuple[str, ...] = ()
    start_limit_s: float = 30.0
    stop_signal: signal.Signals = signal.SIGTERM
    patience_s: float = 10.0
    health_every_s: float = 2.0
    health_limit_s: float = 5.0
    failures_allowed: int = 3
    instead: tuple[str, str, str] | None = None

    def prepare(self, say: Say) -> None:  # noqa: B027 - most parts have nothing to prepare
        """Do what must be done before a start, and may take long; runs in a thread.

        Args:
            say: Takes progress lines; callable from any thread.
        """

    @abstractmethod
    def launch(self) -> Launch:
        """Return how to start the process."""

    def started(self, pid: int) -> None:  # noqa: B027 - most parts have no use for it
        """Learn the id of the process just started."""

    @abstractmethod
    async def problem(self) -> str | None:
        """Say what keeps the part from doing its work.

        Returns:
            None when all is well, else what is wrong, in a few words.
        """

    @property
    def ready_text(self) -> str:
        """What to show beside a ready part: where it is reached."""
        return ""


class Step:
    """Something done once, between the start of the parts it needs and of those that need it."""

    def __init__(
        self,
        name: str,
        needs: tuple[str, ...],
        act: Callable[[Say], str],
        *,
        limit_s: float = 120.0,
    ) -> None:
        """Take what to do.

        Args:
            name: Name in messages.
            needs: Names of the parts and steps that come first.
            act: Does it, in a thread, and returns a line about the outcome.
            limit_s: Seconds it may take.
        """
        self.name = name
        self.needs = needs
        self.act = act
        self.limit_s = limit_s


@dataclass
class PartStatus:
    """How one part is doing.

    Attributes:
        state: Where it is in its life.
        text: The last thing said about it.
        identity: Its process while it runs.
        restarts: How often it was started again.
        since: Unix time of the last change of state, in seconds.
    """

    state: State = "waiting"
    text: str = ""
    identity: Identity | None = None
    restarts: int = 0
    since: float = field(default_factory=time.time)
