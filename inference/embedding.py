"""The embedding model as Triton's Python backend runs it: all-MiniLM-L6-v2 on ONNX Runtime.

Runs in the engine's environment; configured by config.pbtxt alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from inference.contract import EMBED, ERROR_PREFIX

_BATCH = 32
"""Texts of one run; more would only take more memory."""
_THREADS = 2


class Embedder:
    """Texts to vectors of length one."""

    def __init__(self, parameters: dict[str, str]) -> None:
        """Loads the model.

        Args:
            parameters: String parameters of config.pbtxt.
        """
        # Only the engine's environment has it.
        import onnxruntime
        from tokenizers import Tokenizer

        self._tokenizer = Tokenizer.from_file(parameters["tokenizer"])
        # The file pads every text to 128 tokens, which would be work for nothing.
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(int(parameters["window"]))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _THREADS
        # Threads that spin between requests would take the cores from the language models.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = onnxruntime.InferenceSession(
            parameters["weights"], options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {each.name for each in self._session.get_inputs()}

    def embed(self, texts: list[str]) -> tuple[Any, list[int]]:
        """Vectors, one a row, and how many tokens of each text were read."""
        encoded = self._tokenizer.encode_batch(texts)
        counts = [len(each.ids) for each in encoded]
        width = self._session.get_outputs()[0].shape[-1]
        vectors = np.zeros((len(texts), width), dtype=np.float32)
        # Similar lengths together: a batch is padded to its longest text.
        order = sorted(range(len(texts)), key=counts.__getitem__)
        for start in range(0, len(order), _BATCH):
            rows = order[start : start + _BATCH]
            vectors[rows] = self._run([encoded[row] for row in rows])
        return vectors, counts

    def _run(self, encoded: list[Any]) -> Any:
        longest = max(len(each.ids) for each in encoded)
        ids = np.zeros((len(encoded), longest), dtype=np.int64)
        mask = np.zeros_like(ids)
        for row, each in enumerate(encoded):
            ids[row, : len(each.ids)] = each.ids
            mask[row, : len(each.ids)] = 1
        feeds = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        feeds = {name: value for name, value in feeds.items() if name in self._inputs}
        (hidden,) = self._session.run(None, feeds)
        weights = mask[:, :, None].astype(np.float32)
        pooled = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)


class EmbeddingServer:
    """Answers Triton's requests one after another."""

    def __init__(self, backend: Any, parameters: dict[str, str]) -> None:
        """Loads the model.

        Args:
            backend: The module `triton_python_backend_utils`.
            parameters: String parameters of config.pbtxt.
        """
        self._backend = backend
        self._embedder = Embedder(parameters)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One response per request."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy().ravel().tolist() for tensor in request.inputs()}
        operation = inputs.get("operation", [b"embed"])[0]
        if operation == b"ping":
            return self._response(np.zeros((0, 0), dtype=np.float32), [])
        if operation != b"embed":
            return self._error("bad_request", "unknown operation")
        try:
            texts = [text.decode() for text in inputs["texts"]]
        except KeyError:
            return self._error("bad_request", "texts is missing")
        except UnicodeDecodeError:
            return self._error("bad_request", "a text is not UTF-8")
        try:
            return self._response(*self._embedder.embed(texts))
        except Exception as error:
            return self._error("engine_failed", f"the engine broke: {type(error).__name__}")

    def _response(self, vectors: Any, counts: list[int]) -> Any:
        return self._backend.InferenceResponse(
            output_tensors=[
                self._backend.Tensor("embeddings", vectors),
                self._backend.Tensor("token_counts", EMBED.output("token_counts").array(counts)),
            ]
        )

    def _error(self, code: str, message: str) -> Any:
        error = self._backend.TritonError(f"{ERROR_PREFIX}{code}: {message}")
        return self._backend.InferenceResponse(output_tensors=[], error=error)
