"""The scripted model's artefacts: a real tokenizer that needs no download."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.models.artefacts import scripted_spelling, write_artefacts
from inference.models.registry import find
from inference.tokenizers import ModelTokenizer, load_tokenizer
from inference.vocabulary import Vocabulary, load_vocabulary


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artefact folder."""
    folder = tmp_path_factory.mktemp("models") / "scripted"
    write_artefacts(folder, find("scripted"), scripted_spelling())
    return folder


@pytest.fixture(scope="session")
def vocabulary(artefacts: Path) -> Vocabulary:
    """One token a byte."""
    return load_vocabulary(artefacts)


@pytest.fixture(scope="session")
def tokenizer(artefacts: Path) -> ModelTokenizer:
    """The same, as the harness uses it."""
    return load_tokenizer(artefacts)
