"""One real Triton a session, with the scripted and two real models; others on request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from deploy.local.engine_env import ensure_engine_env
from inference.client import TritonClient
from inference.tokenizers import ModelTokenizer, load_tokenizer
from settings import load_settings
from tests.integration.engine.running import RunningEngine

MODELS = ("scripted", "smollm2-135m-instruct", "all-minilm-l6-v2")


@pytest.fixture(scope="session")
def engine_env() -> Path:
    """The environment of the models, made when it is not there."""
    path = load_settings().engine_environment.absolute()
    ensure_engine_env(path)
    return path


@pytest.fixture(scope="session")
async def engine(
    engine_env: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[RunningEngine]:
    """The session's engine; tests leave it as they found it."""
    running = RunningEngine(tmp_path_factory.mktemp("engine"), engine_env, MODELS)
    try:
        await running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="session")
async def client(engine: RunningEngine) -> AsyncIterator[TritonClient]:
    """A client of the session's engine."""
    async with TritonClient(engine.url) as client:
        yield client


@pytest.fixture(scope="session")
def smollm(engine: RunningEngine) -> ModelTokenizer:
    """SmolLM2's tokenizer."""
    return load_tokenizer(engine.models_folder / "smollm2-135m-instruct")


@pytest.fixture
def own_engine(engine_env: Path, tmp_path: Path) -> Iterator[Callable[..., RunningEngine]]:
    """Makes engines for tests that break them. Not started: `await engine.start()`."""
    made: list[RunningEngine] = []

    def make(*models: str) -> RunningEngine:
        folder = tmp_path / f"e{len(made)}"
        folder.mkdir()
        made.append(RunningEngine(folder, engine_env, models or ("scripted",)))
        return made[-1]

    yield make
    for running in made:
        running.stop(patience_s=0.5)
