"""One request's way back to its caller, inside the model."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from inference.contract import ERROR_PREFIX, Contract


class Reply:
    """Wraps Triton's response sender.

    Asking a sender whether its caller has left, after its last response has gone out, reads
    freed memory and kills the whole server (seen with Triton 2.51). Asking and ending therefore
    exclude each other here, and nothing is asked after the end.
    """

    def __init__(self, backend: Any, contract: Contract, sender: Any) -> None:
        """Takes what Triton gave.

        Args:
            backend: The module `triton_python_backend_utils`.
            contract: Tensors of the model.
            sender: The request's response sender.
        """
        self._backend = backend
        self._contract = contract
        self._sender = sender
        self._lock = threading.Lock()
        self._ended = False

    def send(self, values: dict[str, Any], *, final: bool) -> None:
        """Sends outputs by name; a value is a list or a single element."""
        tensors = []
        for name, value in values.items():
            spec = self._contract.output(name)
            array = spec.array(value if isinstance(value, list) else [value])
            tensors.append(self._backend.Tensor(name, array))
        self._send(self._backend.InferenceResponse(output_tensors=tensors), final=final)

    def refuse(self, code: str, message: str) -> None:
        """Ends the request with a typed error."""
        error = self._backend.TritonError(f"{ERROR_PREFIX}{code}: {message}")
        response = self._backend.InferenceResponse(output_tensors=[], error=error)
        # An error that cannot be delivered has nobody to be told to.
        with contextlib.suppress(Exception):
            self._send(response, final=True)

    def caller_left(self) -> bool:
        """Whether the caller cancelled; False once the request has ended."""
        with self._lock:
            return not self._ended and bool(self._sender.is_cancelled())

    def _send(self, response: Any, *, final: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = final
            flags = self._backend.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
            self._sender.send(response, flags=flags)
