"""What Triton loads for an embedding model: a door to `inference.embedding`."""

import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as backend

# Triton starts the stub isolated: PYTHONPATH is not read, so the code is found beside the
# repository this file lies in.
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "code"))

from inference.door import live_and_die_with_triton, string_parameters
from inference.embedding import EmbeddingServer


class TritonPythonModel:
    """The class Triton's Python backend looks for."""

    def initialize(self, args: dict[str, str]) -> None:
        """Loads the model."""
        live_and_die_with_triton()
        self._server = EmbeddingServer(backend, string_parameters(args["model_config"]))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answers requests."""
        return self._server.execute(requests)
