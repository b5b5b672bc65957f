"""What the `triton` container runs: the model repository, then `tritonserver` in our place.

python -P -m deploy.compose.triton            lay out, then become the server
python -P -m deploy.compose.triton --check    exit 0 if every model answers
python -P -m deploy.compose.triton --gpu DIR  lay out a repository for NVIDIA's image, and end
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import inference
from deploy.local.errors import StackError
from deploy.local.triton import build_repository, models_problem, triton_launch
from inference.contract import GENERATE, config_pbtxt
from inference.models.registry import find
from settings import Settings, load_settings

__all__ = ["gpu_configuration", "main", "on_all_addresses"]

_PORTS = {"triton_grpc": 8001, "triton_http": 8000, "triton_metrics": 8002}
# Where NVIDIA's image finds what compose mounts for it.
_CHECKPOINTS, _ARTEFACTS, _METER = Path("/checkpoints"), Path("/models"), Path("/meter")


def main() -> int:
    """Run as asked; does not return when it becomes the server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="ask every model for a sign of life")
    parser.add_argument("--gpu", type=Path, help="folder of a repository for NVIDIA's image")
    chosen = parser.parse_args()
    settings = load_settings()
    if chosen.check:
        url = f"127.0.0.1:{_PORTS['triton_grpc']}"
        problem = asyncio.run(models_problem(url, settings.models))
        print(problem or "every model answers")  # noqa: T201 - read by `docker inspect`
        return 0 if problem is None else 1
    try:
        _serve(settings, chosen.gpu)
    except StackError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _serve(settings: Settings, gpu: Path | None) -> None:
    layout = build_repository(
        settings.home / "triton",
        settings.engine_environment,
        settings.models,
        settings.models_folder,
        _say,
    )
    if gpu is not None:
        _lay_out_for_gpu(settings, gpu)
        return
    launch = triton_launch(layout, _PORTS)
    os.chdir(layout.folder)
    argv = on_all_addresses(launch.argv)
    os.execve(argv[0], argv, dict(launch.env))  # noqa: S606 - becomes the server, no shell


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


def on_all_addresses(argv: Sequence[str]) -> list[str]:
    """Return the server's command line for a network of containers: it listens everywhere.

    Args:
        argv: The command line for one machine, which listens on loopback.
    """
    return [word.replace("-address=127.0.0.1", "-address=0.0.0.0") for word in argv]


def gpu_configuration(name: str) -> str:
    """Return config.pbtxt of a generating model for TensorRT-LLM in NVIDIA's image.

    Args:
        name: Registered model; its checkpoint is the folder of that name in `/checkpoints`.
    """
    parameters = {
        "engine": "tensorrt_llm",
        "weights": str(_CHECKPOINTS / name),
        "artefacts": str(_ARTEFACTS / name),
        "meter_dir": str(_METER / name),
    }
    return config_pbtxt(name, GENERATE, parameters)


def _lay_out_for_gpu(settings: Settings, folder: Path) -> None:
    """Copy doors and code; only what generates goes there, embeddings stay on the CPU."""
    source = Path(inference.__file__).parent
    code = folder / "code" / "inference"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, code, ignore=shutil.ignore_patterns("__pycache__"))
    for name in settings.models:
        if find(name).kind != "generate" or find(name).engine == "scripted":
            continue
        version = folder / "repository" / name / "1"
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(gpu_configuration(name))
        shutil.copy2(source / "repository" / "generate" / "model.py", version / "model.py")


if __name__ == "__main__":
    sys.exit(main())
