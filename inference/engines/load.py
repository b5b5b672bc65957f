"""Which engine a deployment names."""

from __future__ import annotations

import json
from pathlib import Path

from inference.engines.base import Engine
from inference.vocabulary import Vocabulary


def load_engine(parameters: dict[str, str], vocabulary: Vocabulary) -> Engine:
    """Makes the engine that config.pbtxt names; it is started by its caller.

    Each engine's module is imported only when named: the others need not be installed.

    Args:
        parameters: String parameters of config.pbtxt.
        vocabulary: The model's tokens.

    Raises:
        ValueError: No engine has that name.
    """
    name = parameters["engine"]
    if name == "scripted":
        from inference.engines.scripted import ScriptedEngine

        return ScriptedEngine(vocabulary, Path(parameters["meter_dir"]))
    if name == "llama_cpp":
        from inference.engines.llama_cpp import LlamaCppEngine, LlamaSettings

        settings = LlamaSettings(
            weights=parameters["weights"],
            slots=int(parameters.get("slots", "4")),
            threads=int(parameters.get("threads", "0")),
            adapters=json.loads(parameters.get("adapters", "{}")),
        )
        return LlamaCppEngine(vocabulary, settings)
    if name == "tensorrt_llm":
        from inference.engines.tensorrt_llm import TensorRtLlmEngine, TensorRtSettings

        return TensorRtLlmEngine(
            vocabulary,
            TensorRtSettings(
                model=parameters["weights"],
                slots=int(parameters.get("slots", "64")),
                tensor_parallel=int(parameters.get("tensor_parallel", "1")),
                memory_fraction=float(parameters.get("memory_fraction", "0.9")),
                adapters=json.loads(parameters.get("adapters", "{}")),
                max_lora_rank=int(parameters.get("max_lora_rank", "64")),
            ),
        )
    raise ValueError(f"unknown engine {name!r}")
