"""How many model calls one worker process takes at a time."""

from __future__ import annotations

import pytest

from deploy.model_workers import slots_of_process
from settings import Settings


@pytest.mark.parametrize(
    ("engine_slots", "workers", "most", "slots"),
    [(8, 2, 100, 4), (4, 3, 100, 2), (1, 8, 100, 1), (1024, 2, 100, 100), (8, 0, 100, 8)],
)
def test_its_share_of_the_engines_rounded_up(
    engine_slots: int, workers: int, most: int, slots: int
) -> None:
    settings = Settings(_env_file=None, workers=workers, worker_concurrency=most)
    assert slots_of_process(engine_slots, settings) == slots
