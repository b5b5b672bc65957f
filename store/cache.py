"""The exact cache: has this very call been answered, and does the answer still hold?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

from store.database import Database

# Written at settlement (`store.money`), with the revisions the answer rests on; compared here with
# today's, so a changed collection or catalogue outdates entries without anyone looking for them.
_LOOK_UP = """
select e.cache_entry_id as id, coalesce(e.text, '') as text, e.tool_call,
       coalesce(e.finish_reason, 'stop') as finish_reason, e.model,
       e.prompt_tokens, e.completion_tokens, e.billed_usd as saved_usd
  from cache_entries e
 where e.organisation_id = %(org)s and e.key = %(key)s
   and (e.expires_at is null or e.expires_at > now())
   and e.catalogue_digest = (select digest from catalogue_state)
   and e.revisions = coalesce((
         select jsonb_object_agg(c.collection_id, c.revision) from collections c
          where c.organisation_id = %(org)s and c.collection_id = any (%(collections)s::uuid[])),
         '{}')
"""


@dataclass(frozen=True, slots=True)
class CacheHit:
    """A stored answer that still holds.

    Attributes:
        tool_call: what was chosen; a list where several calls could be.
        saved_usd: what the call that produced it was billed.
    """

    id: UUID
    text: str
    tool_call: dict[str, Any] | list[dict[str, Any]] | None
    finish_reason: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    saved_usd: Decimal


async def look_up(
    db: Database, organisation_id: UUID, key: str, collections: Sequence[UUID]
) -> CacheHit | None:
    """Finds the answer of an equal call (one round trip).

    Args:
        key: canonical digest of everything that can change the answer, as hex.
        collections: the collections the call may read.
    """
    rows = await db.run(
        organisation_id,
        _LOOK_UP,
        {"org": organisation_id, "key": key, "collections": list(collections)},
    )
    return CacheHit(**rows[0]) if rows else None
