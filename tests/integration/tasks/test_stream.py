"""A reader that is cut off, anywhere and often, sees each event once and in order."""

from __future__ import annotations

import random

from tests.integration.tasks.caller import Caller, Event, choose, say, words

MODEL = "scripted"
SEED = 20261201


async def test_a_stream_cut_at_random_gives_each_event_once(caller: Caller) -> None:
    """Twenty cuts and more while it runs, the first before any event was read."""
    chance = random.Random(SEED)
    text = words(60)
    question = choose({"tool": "calculator", "expression": "2*3"}) + say(text, pace_ms=8)
    task_id = await caller.submit(
        question,
        model=MODEL,
        tools=[{"name": "calculator", "must_call": True}],
        sampling={"max_tokens": 500},
    )
    seen: list[Event] = []
    cuts = 0
    while not seen or seen[-1].type != "task.succeeded":
        left = chance.randrange(0, 4)
        stream = caller.stream(task_id, seen[-1].id if seen else None)
        if cuts == 0:
            left = 0
        while left:
            try:
                seen.append(await anext(stream))
            except StopAsyncIteration:
                break
            left -= 1
        await stream.aclose()  # type: ignore[attr-defined]
        cuts += 1
    assert cuts >= 15
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    said = "".join(e.payload["text"] for e in seen if e.type == "text" and e.step == 2)
    assert said == text

    # From every id a reader may have kept, the rest is what an uninterrupted reader saw.
    whole = [event async for event in caller.stream(task_id)]
    assert whole == seen
    for place in chance.sample(range(len(whole)), 5):
        rest = [event async for event in caller.stream(task_id, whole[place].id)]
        assert rest == whole[place + 1 :]
