"""Collections that a request names, by id."""

from __future__ import annotations

from api.parts import Parts
from api.problems import not_found
from store import retrieval
from store.identity import Principal
from workflows.contracts import TaskRequest

__all__ = ["with_collection_ids"]


async def with_collection_ids(parts: Parts, caller: Principal, request: TaskRequest) -> TaskRequest:
    """Return the request with collections by id, so that a later rename changes nothing.

    Raises:
        ProblemError: There is no such collection (404); names those there are.
    """
    ids: list[str] = []
    for name in request.collections:
        found = await retrieval.get_collection_by_name_or_id(
            parts.database, caller.organisation_id, name
        )
        if found is None:
            known = await retrieval.list_collections(parts.database, caller.organisation_id)
            raise not_found("collection", known=[collection.name for collection in known])
        ids.append(str(found.id))
    return request.model_copy(update={"collections": tuple(dict.fromkeys(ids))})
