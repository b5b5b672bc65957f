"""Bounded load on an OpenAI-compatible address of this machine; prints one JSON object.

python -m tests.benchmarks.gateway_load URL KEY MODEL CONCURRENCY CALLS [--stream] [--same] ...
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from urllib.parse import urlsplit

import aiohttp
import uvloop

MOST_SECONDS = 20.0
WARM_UP = 32


async def load(asked: argparse.Namespace) -> dict[str, object]:
    """Keep so many calls going; times are from the request's start to the answer's last byte."""
    assert urlsplit(asked.url).hostname in ("127.0.0.1", "localhost")
    body = {
        "model": asked.model,
        "messages": [{"role": "user", "content": "Say tok thirty-two times."}],
        "max_tokens": 64,
    }
    if asked.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if asked.same:
        body["temperature"] = 0
    raw = json.dumps(body).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {asked.key}"}
    times: list[float] = []
    statuses: Counter[int] = Counter()

    async def one(session: aiohttp.ClientSession) -> None:
        began = time.perf_counter()
        async with session.post(asked.url + "/chat/completions", data=raw, headers=headers) as r:
            data = await r.read()
            if r.status == 200:
                assert b"[DONE]" in data or not asked.stream
            statuses[r.status] += 1
            times.append((time.perf_counter() - began) * 1000)

    limit = aiohttp.ClientTimeout(total=60)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        for _ in range(max(1, WARM_UP // asked.concurrency)):
            await asyncio.gather(*(one(session) for _ in range(asked.concurrency)))
        times.clear()
        statuses.clear()
        left = asked.calls
        began = time.perf_counter()

        async def worker() -> None:
            nonlocal left
            while left > 0 and time.perf_counter() - began < MOST_SECONDS:
                left -= 1
                await one(session)

        await asyncio.gather(*(worker() for _ in range(asked.concurrency)))
        wall = time.perf_counter() - began
    ordered = sorted(times)
    return {
        "calls": len(times),
        "statuses": dict(statuses),
        "per_s": round(len(times) / wall, 1),
        "p50_ms": round(ordered[len(ordered) // 2], 2),
        "p95_ms": round(ordered[int(len(ordered) * 0.95)], 2),
    }


def main() -> None:
    """Load, and say how it went."""
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("key")
    parser.add_argument("model")
    parser.add_argument("concurrency", type=int)
    parser.add_argument("calls", type=int)
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--same", action="store_true", help="An equal call, greedy: cached.")
    print(json.dumps(uvloop.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
