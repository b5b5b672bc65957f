"""Every error a caller, a workflow or a person can meet, with its stable code.

    OverlineError
    ├── UserError            the request is at fault; never retried
    │   ├── InvalidRequest      OVL-1001  422
    │   ├── MalformedRequest    OVL-1002  400
    │   ├── RequestTooLarge     OVL-1003  413
    │   ├── NotFound            OVL-1004  404
    │   ├── Conflict            OVL-1005  409
    │   ├── ContextTooLong      OVL-1006  422   pinned parts alone exceed every window
    │   ├── RequestRefused      OVL-1007  422   the engine refuses the request as asked
    │   ├── OutputInvalid       OVL-1008  422   no answer obeyed the output schema
    │   ├── ToolSourceRefused   OVL-1009  422   an OpenAPI document or MCP server is unusable
    │   └── PayloadTooLarge     OVL-1010  413   more than may be passed between steps
    ├── AccessError          who asks is at fault; never retried
    │   ├── Unauthenticated     OVL-2001  401
    │   ├── KeyRefused          OVL-2002  403   disabled or expired since
    │   └── Forbidden           OVL-2003  403
    ├── PolicyError          a limit is at fault; never retried by itself
    │   ├── BudgetExceeded      OVL-3001  402
    │   ├── StepLimitReached    OVL-3002  —     the loop ended before an answer
    │   ├── EndedOutside        OVL-3003  —     somebody terminated the workflow
    │   ├── TokenLimitReached   OVL-3004  —     the loop used up its tokens
    │   ├── DeadlineReached     OVL-3005  —     the task ran out of its time
    │   ├── MapStopped          OVL-3006  —     an input failed, and the map was to stop then
    │   ├── RateLimited         OVL-3007  429   too many requests, tokens or calls at once
    │   ├── ContentBlocked      OVL-3008  400   a rule of the safety policy forbids the content
    │   └── ApprovalRequired    OVL-3009  403   a rule asks for a person, and here nobody can wait
    └── OutageError          a part is at fault; retried
        ├── DatabaseDown        OVL-4001  503
        ├── OrchestratorDown    OVL-4002  503
        ├── EngineDown          OVL-4003  503
        ├── ModelChanged        OVL-4004  503   another version is deployed: asked again with it
        ├── EngineBusy          OVL-4005  503   an upstream's own limit; it may say until when
        ├── EngineDenied        OVL-4006  502   an upstream does not take us; never retried
        ├── ModelUnpriced       OVL-4007  503   nobody knows what it costs, so it is not served
        ├── SafetyUnavailable   OVL-4008  503   what the policy asks for cannot be judged now
        └── Internal            OVL-5000  500

`type` is the name a Temporal failure carries; retry policies refer to it. Standard library only,
so that workflow code may import it.
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "ALL_ERRORS",
    "AccessError",
    "ApprovalRequired",
    "BudgetExceeded",
    "Conflict",
    "ContentBlocked",
    "ContextTooLong",
    "DatabaseDown",
    "DeadlineReached",
    "EndedOutside",
    "EngineBusy",
    "EngineDenied",
    "EngineDown",
    "Forbidden",
    "Internal",
    "InvalidRequest",
    "KeyRefused",
    "MalformedRequest",
    "MapStopped",
    "ModelChanged",
    "ModelUnpriced",
    "NotFound",
    "OrchestratorDown",
    "OutageError",
    "OutputInvalid",
    "OverlineError",
    "PayloadTooLarge",
    "PolicyError",
    "RateLimited",
    "RequestRefused",
    "RequestTooLarge",
    "SafetyUnavailable",
    "StepLimitReached",
    "TokenLimitReached",
    "ToolSourceRefused",
    "Unauthenticated",
    "UserError",
]


class OverlineError(Exception):
    """Base of the tree. `str(error)` is fit for the caller: no secret, no prompt, no traceback."""

    code: ClassVar[str] = "OVL-5000"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, **facts: str | int | None) -> None:
        """Keep the message and its facts (numbers and names a program may act upon)."""
        super().__init__(message)
        self.message = message
        self.facts = facts

    @classmethod
    def type(cls) -> str:
        """Name of the error in a Temporal failure."""
        return cls.__name__


class UserError(OverlineError):
    """The request is at fault; sending it again unchanged gives the same answer."""


class InvalidRequest(UserError):
    """A field has a value that cannot be used."""

    code, status, title = "OVL-1001", 422, "Invalid request"


class MalformedRequest(UserError):
    """The body is not JSON."""

    code, status, title = "OVL-1002", 400, "Malformed request"


class RequestTooLarge(UserError):
    """The body is larger than the server takes."""

    code, status, title = "OVL-1003", 413, "Request too large"


class NotFound(UserError):
    """No such thing, or not one of the caller's: the two are told apart for nobody."""

    code, status, title = "OVL-1004", 404, "Not found"


class Conflict(UserError):
    """The request contradicts an earlier one, such as an idempotency key used for another body."""

    code, status, title = "OVL-1005", 409, "Conflict"


class ContextTooLong(UserError):
    """What must be kept does not fit the window of any model of the route."""

    code, status, title = "OVL-1006", 422, "Context too long"


class RequestRefused(UserError):
    """The engine refuses the request as asked; another try would be refused too."""

    code, status, title = "OVL-1007", 422, "Refused by the engine"


class OutputInvalid(UserError):
    """The model was shown what is wrong with its answers, and none obeyed the output schema."""

    code, status, title = "OVL-1008", 422, "Output invalid"


class ToolSourceRefused(UserError):
    """The document or server that should say what the tools are cannot be used."""

    code, status, title = "OVL-1009", 422, "Tool source refused"


class PayloadTooLarge(UserError):
    """What one part of a task would pass on to another is larger than anything that is kept."""

    code, status, title = "OVL-1010", 413, "Payload too large"


class AccessError(OverlineError):
    """Who asks is at fault."""


class Unauthenticated(AccessError):
    """No key, or one that is not known."""

    code, status, title = "OVL-2001", 401, "Unauthenticated"


class KeyRefused(AccessError):
    """The key was good when the task was submitted and is not any more."""

    code, status, title = "OVL-2002", 403, "Key refused"


class Forbidden(AccessError):
    """The key may not do this."""

    code, status, title = "OVL-2003", 403, "Forbidden"


class PolicyError(OverlineError):
    """A limit stands in the way."""


class BudgetExceeded(PolicyError):
    """The worst case of the call does not fit a budget. Facts carry the numbers, in USD."""

    code, status, title = "OVL-3001", 402, "Budget exceeded"


class StepLimitReached(PolicyError):
    """The loop used up its steps before it came to an answer."""

    code, status, title = "OVL-3002", 422, "Step limit reached"


class EndedOutside(PolicyError):
    """Somebody ended the task's workflow in Temporal, past the workflow's own end."""

    code, status, title = "OVL-3003", 409, "Ended from outside"


class TokenLimitReached(PolicyError):
    """The loop used up its tokens before it came to an answer."""

    code, status, title = "OVL-3004", 422, "Token limit reached"


class DeadlineReached(PolicyError):
    """The task's own deadline passed before it came to an answer."""

    code, status, title = "OVL-3005", 422, "Deadline reached"


class MapStopped(PolicyError):
    """An input of a map failed, and the map was to stop then."""

    code, status, title = "OVL-3006", 422, "Map stopped"


class RateLimited(PolicyError):
    """A limit of requests, tokens or calls at once is reached. Facts say which, and until when."""

    code, status, title = "OVL-3007", 429, "Rate limited"
    retryable = True


class ContentBlocked(PolicyError):
    """A rule of the safety policy forbids the content. Facts name the rule, never the content."""

    code, status, title = "OVL-3008", 400, "Content blocked"


class ApprovalRequired(PolicyError):
    """A rule of the safety policy asks for a person, and this request cannot wait for one."""

    code, status, title = "OVL-3009", 403, "Approval required"


class OutageError(OverlineError):
    """A part is down; the same request is worth sending again."""

    retryable = True


class DatabaseDown(OutageError):
    """Postgres cannot be reached."""

    code, status, title = "OVL-4001", 503, "Database unavailable"


class OrchestratorDown(OutageError):
    """Temporal cannot be reached."""

    code, status, title = "OVL-4002", 503, "Temporal unavailable"


class EngineDown(OutageError):
    """No replica of the model answers."""

    code, status, title = "OVL-4003", 503, "Inference engine unavailable"


class ModelChanged(OutageError):
    """The model or its tokenizer was replaced under a generation: its tokens mean nothing now.

    The call is decided again and starts over with the model that is there.
    """

    code, status, title = "OVL-4004", 503, "Model changed"
    retryable = False


class EngineBusy(OutageError):
    """An upstream asks us to come back later; `retry_after_s` among the facts may say when."""

    code, status, title = "OVL-4005", 503, "Upstream busy"


class EngineDenied(OutageError):
    """An upstream does not take our key, our account or its model's name: an operator must act."""

    code, status, title = "OVL-4006", 502, "Upstream refuses us"
    retryable = False


class ModelUnpriced(OutageError):
    """The model has no price in force, so no budget could hold for it: an operator must say one."""

    code, status, title = "OVL-4007", 503, "Model without a price"
    retryable = False


class SafetyUnavailable(OutageError):
    """What the safety policy asks for cannot be judged now, and the policy lets nothing pass then.

    Facts name the rule.
    """

    code, status, title = "OVL-4008", 503, "Safety check unavailable"


class Internal(OverlineError):
    """A defect of ours; the request id finds it in the logs."""


ALL_ERRORS: tuple[type[OverlineError], ...] = (
    InvalidRequest,
    MalformedRequest,
    RequestTooLarge,
    NotFound,
    Conflict,
    ContextTooLong,
    RequestRefused,
    OutputInvalid,
    ToolSourceRefused,
    PayloadTooLarge,
    Unauthenticated,
    KeyRefused,
    Forbidden,
    BudgetExceeded,
    StepLimitReached,
    EndedOutside,
    TokenLimitReached,
    DeadlineReached,
    MapStopped,
    RateLimited,
    ContentBlocked,
    ApprovalRequired,
    DatabaseDown,
    OrchestratorDown,
    EngineDown,
    ModelChanged,
    EngineBusy,
    EngineDenied,
    ModelUnpriced,
    SafetyUnavailable,
    Internal,
)
