"""Tasks of tasks: filed for a call of their parent, listed, and added up."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database
from store.identity import Principal
from store.refusals import Refusal, refusal_from_row
from store.tasks import Submitted
from store.text import jsonb

__all__ = ["Child", "Tree", "below", "file_child"]

#: Of a task's children, as many are read with it.
MOST_LISTED = 100


@dataclass(frozen=True, slots=True)
class Child:
    """A child in a few words; amounts in USD, its own calls only."""

    task_id: UUID
    kind: str
    agent_name: str | None
    agent_version: int | None
    parent_step: int | None
    status: str
    billed_usd: Decimal


@dataclass(frozen=True, slots=True)
class Tree:
    """A task and everything below it, added up.

    Attributes:
        tasks: how many tasks that are, the task itself included.
        tokens: tokens billed, prompts and answers.
    """

    tasks: int
    tokens: int
    billed_usd: Decimal
    waste_usd: Decimal
    saved_usd: Decimal


async def file_child(
    db: Database,
    principal: Principal,
    *,
    task_id: UUID,
    idempotency_key: str,
    request_digest: str,
    input: dict[str, Any],  # noqa: A002 - the field's name on the wire
    user: str | None,
    tags: dict[str, str],
    route: str,
    worst_case_usd: Decimal,
    max_cost_usd: Decimal | None,
    parent_task_id: UUID,
    parent_step: int,
    call_id: str,
) -> Submitted | Refusal:
    """Files the task that a call stands for, once, and tells the parent's readers.

    Args:
        parent_task_id: the task whose call it is: its budgets are the child's, too.
        parent_step: the step that called.
        call_id: the call.

    The other arguments, and what is raised, are those of `store.tasks.submit_task`.
    """
    rows = await db.call(
        principal.organisation_id,
        "file_child",
        "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s",
        (
            principal.team_id,
            principal.key_id,
            task_id,
            idempotency_key,
            request_digest,
            jsonb(input),
            user,
            jsonb(tags),
            route,
            worst_case_usd,
            max_cost_usd,
            parent_task_id,
            parent_step,
            call_id,
        ),
    )
    row = rows[0]
    refusal = refusal_from_row(row, worst_case_usd)
    return refusal or Submitted(row["task_id"], row["created"], row["conflict"])


_CHILDREN = (
    f"select {', '.join(Child.__dataclass_fields__)} from tasks"
    " where organisation_id = %s and parent_task_id = %s order by task_id limit %s"
)
_TREE = """
select count(*) as tasks,
       coalesce(sum(t.prompt_tokens + t.completion_tokens), 0)::bigint as tokens,
       coalesce(sum(t.billed_usd), 0) as billed_usd, coalesce(sum(t.waste_usd), 0) as waste_usd,
       coalesce(sum(t.saved_usd), 0) as saved_usd
  from tasks t
 where t.organisation_id = %(organisation)s and (t.task_id = %(task)s
        or (t.root_task_id = %(root)s and t.parent_task_id is not null
            and %(task)s = any (t.ancestors)))
"""


async def below(
    db: Database, organisation_id: UUID, task_id: UUID, root: UUID, *, limit: int = MOST_LISTED
) -> tuple[list[Child], Tree]:
    """A task's children, oldest first, and what it took with everything below it.

    Args:
        root: the task its caller submitted.
        limit: most children that are read.
    """
    key = {"organisation": organisation_id, "task": task_id, "root": root}
    children, trees = await db.run_many(
        organisation_id, [(_CHILDREN, (organisation_id, task_id, limit)), (_TREE, key)]
    )
    return [Child(**row) for row in children], Tree(**trees[0])
