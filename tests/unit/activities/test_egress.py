"""What a tenant can name is reached only where it is public; a sink on loopback sees nobody."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from activities.egress import AnswerTooLarge, Egress, EgressRefused, is_public

NAMES = {
    "public.example": ["93.184.216.34"],
    "loopback.example": ["127.0.0.1"],
    "mixed.example": ["93.184.216.34", "::1"],
    "mapped.example": ["::ffff:7f00:1"],
    "metadata.example": ["169.254.169.254"],
    "localhost": ["127.0.0.1"],
}


class Sink:
    def __init__(self):
        self.connections = 0

    async def __aenter__(self):
        self.server = await asyncio.start_server(self._met, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_):
        self.server.close()

    async def _met(self, reader, writer):
        self.connections += 1
        path = (await reader.readline()).split()[1]
        if path == b"/away":
            head = b"302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0"
        elif path == b"/packed":
            head = b"200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 0"
        else:
            head = b"200 OK\r\nContent-Length: 100"
        writer.write(b"HTTP/1.1 " + head + b"\r\n\r\n" + b"x" * 100)
        await writer.drain()
        writer.close()


async def known(host, port):
    return NAMES.get(host, [host])


async def get(egress, url, **options):
    async with egress.client(timeout_s=2, max_bytes=options.get("max_bytes", 1000)) as http:
        return await http.get(url)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "loopback.example",
        "mixed.example",
        "mapped.example",
        "localhost",
        "localhost.",
        "LOCALHOST",
        "ⓛocalhost",
        "2130706433",
        "0177.1",
        "0x7f.1",
        "127.1",
        "[::1]",
        "[::ffff:7f00:1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::]",
        "user:word@public.example",
        "0.0.0.0",
    ],
)
async def test_no_spelling_of_loopback_is_reached(host):
    """On the port that the sink has, and on the one where only the address can be at fault."""
    async with Sink() as sink:
        for allow in ((), (f"other.example:{sink.port}",)):
            egress = Egress(allow, resolve=known)
            for port in ("", ":80", f":{sink.port}"):
                with pytest.raises((EgressRefused, httpx2.InvalidURL)):
                    await get(egress, f"http://{host}{port}/")
        assert sink.connections == 0


async def test_a_name_is_resolved_once_and_what_was_checked_is_connected_to():
    answers = iter([["93.184.216.34"], ["127.0.0.1"]])
    asked = []

    async def rebinding(host, port):
        asked.append(host)
        return next(answers)

    egress = Egress(resolve=rebinding)
    assert await egress.addresses("rebind.example", 80) == ["93.184.216.34"]
    with pytest.raises(EgressRefused):
        await get(egress, "http://rebind.example/")
    assert asked == ["rebind.example", "rebind.example"]


async def test_what_is_allowed_is_reached_and_redirects_end_there():
    async with Sink() as sink:
        egress = Egress((f"127.0.0.1:{sink.port}",), resolve=known)
        url = f"http://127.0.0.1:{sink.port}"
        assert (await get(egress, f"{url}/")).text == "x" * 100
        assert (await get(egress, f"{url}/away")).status_code == 302
        assert sink.connections == 2
        with pytest.raises(EgressRefused):
            await get(egress, f"{url}/packed")
        with pytest.raises(AnswerTooLarge):
            await get(egress, f"{url}/", max_bytes=99)


@pytest.mark.parametrize("url", ["ftp://public.example/", "http://public.example:22/", "file:///x"])
def test_other_protocols_and_ports_are_refused(url):
    with pytest.raises(EgressRefused):
        Egress().check(httpx2.URL(url))


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1", "172.16.0.1", "192.168.1.1", "127.8.8.8", "169.254.169.254", "100.64.0.1",
        "0.1.2.3", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "::", "::1",
        "fe80::1%eth0", "fc00::1", "fec0::1", "ff02::1", "::ffff:10.0.0.1", "64:ff9b::a00:1",
        "2002:a00:1::", "2001:0:a00:1::", "::7f00:1",
    ],
)  # fmt: skip
def test_addresses_that_are_not_public(address):
    assert not is_public(address)


@pytest.mark.parametrize("address", ["93.184.216.34", "1.1.1.1", "2606:4700::1111"])
def test_addresses_that_are(address):
    assert is_public(address)
