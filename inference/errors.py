"""What can go wrong on the way to a model.

* EngineError
  * EngineUnavailable  the replica or the way to it is broken; another try may work (retryable)
    * EngineBusy       an upstream's own limit is reached; it may say when to come back (retryable)
  * EngineFailed       the engine broke on this request; another try may work (retryable)
  * EngineDenied       an upstream does not take us: our key, our account or its model's name
  * RequestRefused     the request is at fault; the same request is refused again
* ArtefactError        a model's files on this machine are missing or not what they should be
"""

from __future__ import annotations

from dataclasses import dataclass

from inference.usage import TokenUsage


@dataclass(frozen=True, slots=True)
class Told:
    """What an upstream said about a failure. Its key is in none of it; what a caller wrote may be.

    Attributes:
        status: HTTP status; that of an error within a stream where it names one.
        message: Its words, cut off at some hundred characters; not for logs.
        kind: OpenAI's `type`.
        code: OpenAI's `code`.
        param: Name of the parameter at fault.
        retry_after_s: Seconds after which it wants to be asked again.
    """

    status: int | None = None
    message: str = ""
    kind: str | None = None
    code: str | None = None
    param: str | None = None
    retry_after_s: float | None = None


class EngineError(Exception):
    """Base of everything the client raises about a call.

    Attributes:
        code: Stable, machine-readable.
        retryable: Whether the same request may succeed later or elsewhere.
        told: What an upstream said; None where the failure is not of its saying.
        sent: Whether any of the answer had been yielded before.
        usage: What the attempt used until then, where the engine has no meter to ask.
    """

    code = "engine_error"
    retryable = False

    def __init__(self, message: str, code: str | None = None, told: Told | None = None) -> None:
        """Takes a message for people and, where the class has several, the code."""
        super().__init__(message)
        self.code = code or self.code
        self.told = told
        self.sent = False
        self.usage: TokenUsage | None = None


class EngineUnavailable(EngineError):
    """Connection lost, model process dead, nothing heard for too long, deadline passed.

    Codes: connection_lost, unhealthy, not_ready, idle_timeout, deadline, incomplete, unavailable.
    """

    code = "unavailable"
    retryable = True


class EngineBusy(EngineUnavailable):
    """An upstream asks us to come back later; `told.retry_after_s` may say when.

    Code: busy.
    """

    code = "busy"


class EngineFailed(EngineError):
    """The engine raised while it worked on the request.

    Codes: engine_failed, bad_answer (an upstream's answer that cannot be read).
    """

    code = "engine_failed"
    retryable = True


class EngineDenied(EngineError):
    """An upstream does not serve us: an operator must act, the caller can do nothing.

    Codes: denied (key), unknown_model (or address), unpaid, moved (a redirection, never followed).
    """

    code = "denied"


class RequestRefused(EngineError):
    """The request is at fault.

    Codes: those of `inference.contract.REFUSALS`, contract_mismatch when the model under
    that name has other tensors than ours, and of an upstream bad_request, prompt_too_long and
    request_too_large.
    """

    code = "bad_request"


class ArtefactError(Exception):
    """A model's weights or tokenizer are missing or damaged; the message says which file."""
