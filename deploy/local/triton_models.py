"""One folder of Triton's model repository: configuration, door, artefacts, weights."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import inference.repository
from deploy.local.engine_env import site_packages
from inference.contract import EMBED, GENERATE, config_pbtxt
from inference.models.artefacts import (
    made_from,
    scripted_spelling,
    wordpiece_spelling,
    write_artefacts,
)
from inference.models.gguf import read_metadata
from inference.models.gguf_tokenizer import spelling_of
from inference.models.registry import Model
from inference.models.weights import embedding_tokenizer, file_sha256, weights_path

__all__ = ["prepare_model"]

_DOORS = Path(inference.repository.__file__).parent


class _Place(Protocol):
    @property
    def repository(self) -> Path: ...
    @property
    def meter(self) -> Path: ...
    @property
    def engine_env(self) -> Path: ...


def prepare_model(
    model: Model, place: _Place, models_folder: Path, say: Callable[[str], None]
) -> None:
    """Write a model's folder in the repository.

    Args:
        model: The model.
        place: Where the repository, meter and engine environment are.
        models_folder: Where tokenizer artefacts are, or are made.
        say: Takes progress lines.

    Raises:
        ArtefactError: The weights are missing or damaged.
    """
    artefacts = models_folder / model.name
    parameters = {"engine": model.engine, "artefacts": str(artefacts)}
    if model.engine == "scripted":
        write_artefacts(artefacts, model, scripted_spelling())
    else:
        packages = site_packages(place.engine_env)
        weights = weights_path(model.name, packages, artefacts)
        parameters["weights"] = str(weights)
        if model.engine == "onnx":
            tokenizer = embedding_tokenizer(packages)
            write_artefacts(artefacts, model, wordpiece_spelling(tokenizer))
            parameters["tokenizer"] = str(tokenizer)
            parameters["window"] = str(model.context_window)
        else:
            _spell(model, artefacts, weights, say)
    contract = EMBED if model.kind == "embed" else GENERATE
    if contract is GENERATE:
        parameters["meter_dir"] = str(place.meter / model.name)
        parameters["slots"] = str(model.slots)
    folder = place.repository / model.triton_model
    (folder / "1").mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config_pbtxt(model.triton_model, contract, parameters))
    shutil.copy2(_DOORS / contract.kind / "model.py", folder / "1" / "model.py")


def _spell(model: Model, artefacts: Path, weights: Path, say: Callable[[str], None]) -> None:
    """Build the tokenizer from the weights, unless it was built from these already."""
    source = file_sha256(weights)
    if made_from(artefacts, source, model):
        return
    say(f"triton: building the tokenizer of {model.name}")
    write_artefacts(artefacts, model, spelling_of(read_metadata(weights), source))
