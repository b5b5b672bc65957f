"""Reading an upstream's answer: within limits, and with failures of our own types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import aiohttp

from inference.errors import EngineError, EngineFailed, EngineUnavailable

__all__ = ["limited", "typed_failures"]


async def limited(response: aiohttp.ClientResponse, most: int) -> bytes:
    """Return the whole of an answer.

    Raises:
        EngineFailed: It is longer than `most` bytes.
    """
    parts: list[bytes] = []
    size = 0
    async for part in response.content.iter_any():
        size += len(part)
        if size > most:
            raise EngineFailed(f"an answer is longer than {most} bytes", "bad_answer")
        parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def typed_failures(name: str, limit_s: float) -> Iterator[None]:
    """Give the client's own errors our types. Their texts hold addresses, nothing of the key."""
    try:
        yield
    except EngineError:
        raise
    except aiohttp.ConnectionTimeoutError as error:
        raise EngineUnavailable(
            f"upstream {name!r} cannot be reached: no connection in time", "not_ready"
        ) from error
    except TimeoutError as error:
        raise EngineUnavailable(
            f"upstream {name!r} said nothing for {limit_s:g} s", "idle_timeout"
        ) from error
    except aiohttp.ClientConnectorError as error:
        raise EngineUnavailable(f"upstream {name!r} cannot be reached", "not_ready") from error
    except aiohttp.InvalidURL as error:
        raise EngineUnavailable(
            f"upstream {name!r} has an address that is none", "not_ready"
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise EngineUnavailable(
            f"the connection to upstream {name!r} was cut", "connection_lost"
        ) from error
