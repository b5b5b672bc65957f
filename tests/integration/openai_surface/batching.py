"""Files of requests for batches, and waiting for what comes of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from typing import Any

import openai
from openai.types import Batch, FileObject

__all__ = ["CHAT", "ENDED", "ended", "lines", "read", "submitted", "uploaded"]

CHAT = "/v1/chat/completions"
ENDED = ("completed", "failed", "expired", "cancelled")


def lines(questions: Sequence[str], model: str = "scripted", **fields: Any) -> bytes:
    """Return chat completions, one a line; line n is `r<n>`."""
    return b"\n".join(
        json.dumps(
            {
                "custom_id": f"r{number}",
                "method": "POST",
                "url": CHAT,
                "body": {
                    "model": model,
                    "messages": [{"role": "user", "content": question}],
                    **fields,
                },
            }
        ).encode()
        for number, question in enumerate(questions)
    )


async def uploaded(client: openai.AsyncOpenAI, data: bytes) -> FileObject:
    """Upload the input of a batch."""
    return await client.files.create(file=("in.jsonl", data), purpose="batch")


async def submitted(
    client: openai.AsyncOpenAI, data: bytes, endpoint: str = CHAT, **fields: Any
) -> Batch:
    """Upload an input, and submit it."""
    file = await uploaded(client, data)
    asked: Any = {"endpoint": endpoint, "completion_window": "24h"} | fields
    return await client.batches.create(input_file_id=file.id, **asked)


async def ended(
    client: openai.AsyncOpenAI, batch_id: str, *, limit_s: float = 100, **until: Any
) -> Batch:
    """Read a batch until it has ended, or so many lines of it have; over any outage."""
    deadline = time.monotonic() + limit_s
    while True:
        try:
            batch = await client.batches.retrieve(batch_id)
        except (openai.APIConnectionError, openai.InternalServerError):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.2)
            continue
        counts = batch.request_counts
        assert counts is not None
        enough = until.get("lines")
        if batch.status in ENDED or (enough and counts.completed + counts.failed >= enough):
            return batch
        assert time.monotonic() < deadline, batch
        await asyncio.sleep(0.1)


async def read(client: openai.AsyncOpenAI, file_id: str | None) -> dict[str, Any]:
    """Return what a batch wrote, by `custom_id`, in the order of the file."""
    if file_id is None:
        return {}
    content = await client.files.content(file_id)
    found = [json.loads(line) for line in content.text.splitlines()]
    by_id = {each["custom_id"]: each for each in found}
    assert len(by_id) == len(found)
    return by_id
