"""The one way out: what a tenant names is reached only where it is public, and only once checked.

A name is resolved once, every address it has is looked at, and the connection goes to an address
that was looked at: a name that answers differently a moment later changes nothing. Redirects are
never followed by themselves, proxies of the environment are not used, and answers end at a size.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

import httpcore2
import httpx2

__all__ = ["AnswerTooLarge", "Egress", "EgressRefused", "is_public"]

Resolve = Callable[[str, int], Awaitable[list[str]]]

_PORTS = {"http": 80, "https": 443}
# Each carries an IPv4 address that the network may unpack, or stands for a place of one's own.
_NEVER = tuple(
    IPv6Network(network)
    for network in ("::/96", "64:ff9b::/96", "64:ff9b:1::/48", "2001::/32", "2002::/16")
)
# A last label like this makes a resolver read the whole name as an IPv4 address.
_NUMERIC = re.compile(r"(\d+|0[xX][0-9a-fA-F]*)")


class EgressRefused(Exception):
    """The destination is not one that may be reached; nothing was sent."""


class AnswerTooLarge(Exception):
    """The answer went past the size that is read; the rest of it was not."""


def is_public(address: str) -> bool:
    """Tell whether an IP address is one of the public internet, whichever way it is written."""
    ip: IPv4Address | IPv6Address = ip_address(address.partition("%")[0])
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is not None:
            return is_public(str(ip.ipv4_mapped))
        if ip.is_site_local or any(ip in network for network in _NEVER):
            return False
    return ip.is_global and not ip.is_multicast and not ip.is_reserved


async def resolve(host: str, port: int) -> list[str]:
    """Return every address of a host.

    Raises:
        OSError: It has none.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


class Egress:
    """Makes HTTP clients that can reach what may be reached."""

    def __init__(self, allow: Iterable[str] = (), *, resolve: Resolve = resolve) -> None:
        """Make the guard.

        Args:
            allow: `host:port` that may be reached besides: on any port, at any address.
            resolve: Gives the addresses of a host.
        """
        self._allow = frozenset(entry.lower() for entry in allow)
        self._resolve = resolve
        self._ssl = httpx2.create_ssl_context(trust_env=False)
        # They tell addresses with their queries, and what a stranger answered: nothing for logs.
        for name in ("httpx2", "httpcore2", "mcp"):
            logging.getLogger(name).setLevel(logging.CRITICAL)

    def client(
        self, *, timeout_s: float, max_bytes: int, headers: Mapping[str, str] | None = None
    ) -> httpx2.AsyncClient:
        """Return a client of its own for one use; close it.

        Args:
            timeout_s: Longest wait for a connection, or between two pieces of an answer.
            max_bytes: Longest answer; `AnswerTooLarge` when it goes on.
            headers: Sent with every request.
        """
        return httpx2.AsyncClient(
            transport=_GuardedTransport(self, self._ssl, max_bytes),
            timeout=timeout_s,
            follow_redirects=False,
            trust_env=False,
            headers={
                **(headers or {}),
                "user-agent": "overline",
                # What is read is what was counted: a small body cannot unpack into a huge one.
                "accept-encoding": "identity",
            },
        )

    def check(self, url: httpx2.URL) -> None:
        """Look at an address without resolving it.

        Raises:
            EgressRefused: It may not be reached, whatever it resolves to.
        """
        if url.scheme not in _PORTS:
            raise EgressRefused("only http and https are spoken")
        if url.userinfo:
            raise EgressRefused("a URL must not carry a user name or password")
        host = _plain(url.raw_host.decode("ascii"))
        if not host:
            raise EgressRefused("the URL names no host")
        port = url.port or _PORTS[url.scheme]
        if f"{host}:{port}" in self._allow:
            return
        if port not in _PORTS.values():
            raise EgressRefused(f"port {port} is not reached; 80 and 443 are")
        if _NUMERIC.fullmatch(host.rpartition(".")[2]) and not _is_address(host):
            raise EgressRefused("an address must be written in its usual form")
        if _is_address(host) and not is_public(host):
            raise EgressRefused("the address is not a public one")

    async def addresses(self, host: str, port: int) -> list[str]:
        """Resolve a host, once, to addresses that may all be reached.

        Raises:
            EgressRefused: One of them may not.
            OSError: There are none.
        """
        host = _plain(host)
        found = await self._resolve(host, port)
        if f"{host}:{port}" not in self._allow and not all(map(is_public, found)):
            raise EgressRefused("the name leads to an address that is not a public one")
        return found


def _plain(host: str) -> str:
    return host.lower().strip("[]").rstrip(".")


def _is_address(host: str) -> bool:
    try:
        return str(ip_address(host)) == host or ":" in host
    except ValueError:
        return False


class _GuardedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to addresses that were checked, and to nothing by name."""

    def __init__(self, egress: Egress) -> None:
        self._egress = egress
        self._network = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 (the interface has it)
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        try:
            async with asyncio.timeout(timeout):
                found = await self._egress.addresses(host, port)
        except TimeoutError:
            raise httpcore2.ConnectTimeout("the name was not resolved in time") from None
        except OSError:
            raise httpcore2.ConnectError("the name is not known") from None
        failed: Exception = httpcore2.ConnectError("the name has no address")
        for address in found[:3]:
            try:
                return await self._network.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout) as error:
                failed = error
        raise failed

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _GuardedTransport(httpx2.AsyncHTTPTransport):
    def __init__(self, egress: Egress, context: object, max_bytes: int) -> None:
        super().__init__(verify=context, trust_env=False)  # type: ignore[arg-type]
        self._egress = egress
        self._max_bytes = max_bytes
        # The transport has no parameter for it; the pool has.
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context,  # type: ignore[arg-type]
            network_backend=_GuardedBackend(egress),
            max_keepalive_connections=4,
        )

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self._egress.check(request.url)
        response = await super().handle_async_request(request)
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            await response.aclose()
            raise EgressRefused("the answer is packed, and was asked for as it is")
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Capped(response.stream, self._max_bytes)
        return response


class _Capped(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, max_bytes: int) -> None:
        self._stream = stream
        self._left = self._max_bytes = max_bytes

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            self._left -= len(piece)
            if self._left < 0:
                raise AnswerTooLarge(f"the answer is longer than {self._max_bytes:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()
