"""Calls that a safety policy does not let begin: filed among the refusals, and nothing used up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from store.calls import Unauthenticated, WrongScope
from store.database import Database
from store.decisions import Decision, documents
from store.errors import PolicyChanged
from store.identity import BIND_CALLER, CALLER_KEY, Origin
from store.text import jsonb

__all__ = ["ScreenedOut", "file_screened_out"]


@dataclass(frozen=True, slots=True)
class ScreenedOut:
    """A call that may not begin.

    Attributes:
        task_id: the id that its task would have had; its decisions say the same.
        policy: version of the safety policy that says so.
        code: `content_blocked`, `approval_required` or `safety_unavailable`.
        rule: which rule of the policy.
    """

    key_id: UUID
    key_digest: bytes
    task_id: UUID
    policy: int
    user: str | None
    tags: Mapping[str, str]
    endpoint: str
    model: str
    code: str
    rule: str
    trace_id: str | None
    decision: Decision
    origin: Origin


async def file_screened_out(db: Database, out: ScreenedOut) -> Unauthenticated | WrongScope | None:
    """Files a call that may not begin, with what was decided and an entry in the audit log.

    Returns:
        None; or why nobody is told of the policy: the token is not good any more.

    Raises:
        PolicyChanged: another policy holds by now.
        DatabaseUnavailable: not known whether it was filed.
    """
    rows = await db.run_untenanted(
        f"select r.* from {BIND_CALLER} cross join lateral"
        f" refuse_screened_call({CALLER_KEY}, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s) r",
        (
            out.origin.said(),
            out.key_id,
            out.key_digest,
            out.task_id,
            out.policy,
            out.user,
            jsonb(dict(out.tags)),
            out.endpoint,
            out.model,
            out.code,
            out.rule,
            out.trace_id,
            documents([out.decision]),
        ),
    )
    match rows[0]["verdict"]:
        case "unauthenticated":
            return Unauthenticated(rows[0]["reason"])
        case "forbidden":
            return WrongScope()
        case "changed":
            raise PolicyChanged("another safety policy holds by now")
        case _:
            return None
