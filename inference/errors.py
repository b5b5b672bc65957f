"""What can go wrong on the way to a model.

* EngineError
  * EngineUnavailable  the replica or the way to it is broken; another try may work (retryable)
  * EngineFailed       the engine broke on this request; another try may work (retryable)
  * RequestRefused     the request is at fault; the same request is refused again
* ArtefactError        a model's files on this machine are missing or not what they should be
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of everything the client raises about a call.

    Attributes:
        code: Stable, machine-readable.
        retryable: Whether the same request may succeed later or elsewhere.
    """

    code = "engine_error"
    retryable = False

    def __init__(self, message: str, code: str | None = None) -> None:
        """Takes a message for people and, where the class has several, the code."""
        super().__init__(message)
        self.code = code or self.code


class EngineUnavailable(EngineError):
    """Connection lost, model process dead, nothing heard for too long, deadline passed.

    Codes: connection_lost, unhealthy, not_ready, idle_timeout, deadline, incomplete, unavailable.
    """

    code = "unavailable"
    retryable = True


class EngineFailed(EngineError):
    """The engine raised while it worked on the request.

    Code: engine_failed.
    """

    code = "engine_failed"
    retryable = True


class RequestRefused(EngineError):
    """The request is at fault.

    Codes: those of `inference.contract.REFUSALS`, and contract_mismatch when the model under
    that name has other tensors than ours.
    """

    code = "bad_request"


class ArtefactError(Exception):
    """A model's weights or tokenizer are missing or damaged; the message says which file."""
