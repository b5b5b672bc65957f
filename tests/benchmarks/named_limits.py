"""A door before the API for probes whose keys are names that say their limits.

    OVERLINE_HOME=… python -m tests.benchmarks.named_limits --port 9200

A bearer token `sk-lim-<limits>-<number>` stands for a key that is made when it is first seen, in an
organisation of its own: `rpm10`, `par2`, `tpm100`, `bud0.0002`, several with hyphens in between;
other words mean nothing. Everything else passes through as it is, streams and hang-ups included.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from uuid import uuid4

import httpx2
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from deploy.local.home import Home, Secrets
from deploy.local.state import read_state
from settings import load_settings
from store.provision import create_key, create_organisation, create_team

_CAPS = {"rpm": "requests_per_minute", "par": "concurrent_calls", "tpm": "tokens_per_minute"}
_WORD = re.compile(r"(rpm|par|tpm|bud)([\d.]+)")
_HOPS = frozenset({"host", "content-length", "transfer-encoding", "connection", "authorization"})


class Door:
    """Knows which key a name stands for."""

    def __init__(self, urls: Sequence[str], admin_url: str) -> None:
        self._admin_url = admin_url
        self._urls = itertools.cycle(urls)
        self._http = httpx2.AsyncClient(base_url=urls[0], timeout=60)
        self._keys: dict[str, str] = {}
        self._making = asyncio.Lock()

    async def pass_on(self, request: Request) -> Response:
        """Ask the API with the key that is meant."""
        name = request.headers.get("authorization", "").removeprefix("Bearer ")
        async with self._making:
            if name not in self._keys:
                self._keys[name] = await self._made(name)
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOPS}
        asked = self._http.build_request(
            request.method,
            next(self._urls) + request.url.path,
            content=await request.body(),
            headers=headers | {"authorization": f"Bearer {self._keys[name]}"},
        )
        answer = await self._http.send(asked, stream=True)

        async def written() -> AsyncIterator[bytes]:
            try:
                async for piece in answer.aiter_bytes():
                    yield piece
            finally:
                await answer.aclose()

        kept = {key: value for key, value in answer.headers.items() if key.lower() not in _HOPS}
        kept.pop("content-encoding", None)
        return StreamingResponse(written(), status_code=answer.status_code, headers=kept)

    async def _made(self, name: str) -> str:
        words = dict(_WORD.findall(name))
        organisation = create_organisation(self._admin_url, f"probe {uuid4()}")
        team = create_team(self._admin_url, organisation, "team")
        cap = Decimal(words["bud"]) if "bud" in words else None
        made = create_key(self._admin_url, organisation, team, name[:60] or "none", cap_usd=cap)
        caps = {_CAPS[word]: int(value) for word, value in words.items() if word in _CAPS}
        if caps:
            answer = await self._http.post(
                "/v1/limits",
                json={"scope": "key", "scope_id": str(made.key_id), **caps},
                headers={"authorization": f"Bearer {made.token}"},
            )
            answer.raise_for_status()
        return made.token


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=9200)
    parser.add_argument("--also", nargs="*", default=[], help="More API processes, asked in turn.")
    options = parser.parse_args()
    home = Home(load_settings().home)
    state = read_state(home)
    password = Secrets.load(home).postgres
    admin = f"postgresql://postgres:{password}@127.0.0.1:{state.ports['postgres']}/overline"
    door = Door([state.urls["api"], *options.also], admin)
    route = Route("/{path:path}", door.pass_on, methods=["GET", "POST"])
    uvicorn.run(Starlette(routes=[route]), host="127.0.0.1", port=options.port)


if __name__ == "__main__":
    main()
