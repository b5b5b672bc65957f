"""What a line of a batch says, and how its answer is written: as the routes of the API do.

The activities know nothing of HTTP, so whoever starts the worker gives them this (see
`deploy.worker`), as the API is given its lane.
"""

from __future__ import annotations

from typing import Any, Protocol

from workflows.contracts.call import CallSpec

__all__ = ["LineCall", "Surface", "Told"]


class LineCall(Protocol):
    """The call that a line asks for.

    Attributes:
        spec: The call.
        texts: What is to be embedded; None for every other call.
    """

    @property
    def spec(self) -> CallSpec:
        """See there."""

    @property
    def texts(self) -> list[str] | None:
        """See there."""

    def document(self, made: Any) -> dict[str, Any]:
        """Return the answer's document, of a call that is over or of vectors."""


class Told(Protocol):
    """A failure in the words of the endpoint: what a route would answer."""

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def code(self) -> str | None:
        """Stable word to branch on."""

    @property
    def message(self) -> str:
        """For people."""

    @property
    def param(self) -> str | None:
        """Which parameter is meant."""

    @property
    def document(self) -> dict[str, Any]:
        """The body of the answer."""


class Surface(Protocol):
    """Reads lines, and words what came of them."""

    def read(self, endpoint: str, body: Any) -> LineCall:
        """Return the call that a body asks for; what it raises is `told`."""

    def told(self, error: Exception, request_id: str, line: object = None) -> Told:
        """Return a failure in the words of the endpoint; `line` is what was read, if it was."""
