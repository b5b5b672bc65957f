"""Teams and keys of the caller's organisation, for its administrators."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Response

from api.authentication import AdminCaller, parts_of
from api.json_body import json_body, request_body
from api.key_views import (
    ChangedKey,
    KeyPage,
    KeyView,
    NewKey,
    NewTeam,
    Rotation,
    TeamList,
    TeamView,
    TokenView,
    key_view,
    team_view,
    token_view,
)
from api.openapi import answers
from api.parts import Parts
from api.problems import ProblemError, forbidden, invalid, not_found
from store import keys
from store.errors import NameTaken
from store.identity import Principal
from workflows import errors

__all__ = ["router"]

router = APIRouter(tags=["identity"])

PartsOf = Annotated[Parts, Depends(parts_of)]
_NEW_TEAM = {"name": "research"}
_NEW_KEY = {
    "team": "01900000-0000-7000-8000-000000000000",
    "name": "nightly",
    "role": "member",
    "service_account": True,
    "models": ["gemma-3-270m"],
    "addresses": ["10.0.0.0/8"],
}


@router.get("/v1/teams", responses=answers(), summary="List teams")
async def list_teams(caller: AdminCaller, parts: PartsOf) -> TeamList:
    """List the organisation's teams by name."""
    found = await keys.list_teams(parts.database, caller.organisation_id)
    return TeamList(teams=tuple(team_view(team) for team in found))


@router.post(
    "/v1/teams",
    status_code=201,
    responses=answers(409, body=True),
    openapi_extra=request_body(NewTeam, _NEW_TEAM),
    summary="Make a team",
)
async def create_team(
    caller: AdminCaller,
    parts: PartsOf,
    body: Annotated[NewTeam, Depends(json_body(NewTeam))],
    response: Response,
) -> TeamView:
    """Make a team; a name that is taken is a 409."""
    try:
        team_id = await keys.create_team(
            parts.database, caller.organisation_id, caller.key_prefix, body.name
        )
    except NameTaken:
        raise _taken() from None
    response.headers["Location"] = f"/v1/teams/{team_id}"
    return await _team(parts, caller, team_id)


@router.get("/v1/teams/{team_id}", responses=answers(404), summary="Read a team")
async def get_team(caller: AdminCaller, parts: PartsOf, team_id: UUID) -> TeamView:
    """Read a team."""
    return await _team(parts, caller, team_id)


@router.patch(
    "/v1/teams/{team_id}",
    responses=answers(404, 409, body=True),
    openapi_extra=request_body(NewTeam, _NEW_TEAM),
    summary="Rename a team",
)
async def rename_team(
    caller: AdminCaller,
    parts: PartsOf,
    team_id: UUID,
    body: Annotated[NewTeam, Depends(json_body(NewTeam))],
) -> TeamView:
    """Give a team another name."""
    try:
        await keys.rename_team(
            parts.database, caller.organisation_id, caller.key_prefix, team_id, body.name
        )
    except NameTaken:
        raise _taken() from None
    return await _team(parts, caller, team_id)


@router.get("/v1/keys", responses=answers(), summary="List keys")
async def list_keys(
    caller: AdminCaller,
    parts: PartsOf,
    team: Annotated[UUID | None, Query(description="Only this team's.")] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="Keys on a page, at most.")] = 50,
    cursor: Annotated[
        UUID | None, Query(description="`next_cursor` of the page before; none: the newest.")
    ] = None,
) -> KeyPage:
    """List keys, newest first, disabled and expired ones too."""
    found = await keys.list_keys(
        parts.database, caller.organisation_id, team_id=team, cursor=cursor, limit=limit + 1
    )
    return KeyPage(
        keys=tuple(key_view(key) for key in found[:limit]),
        next_cursor=found[limit - 1].key_id if len(found) > limit else None,
    )


@router.post(
    "/v1/keys",
    status_code=201,
    responses=answers(404, body=True),
    openapi_extra=request_body(NewKey, _NEW_KEY),
    summary="Make a key",
)
async def create_key(
    caller: AdminCaller,
    parts: PartsOf,
    body: Annotated[NewKey, Depends(json_body(NewKey))],
    response: Response,
) -> TokenView:
    """Make a key. Its token is in this answer, and nowhere else ever again.

    Nobody can give `codec` or `interactive` whose own key lacks it.
    """
    said = body.said()
    if body.expires_at is not None and body.expires_at <= datetime.now(UTC):
        raise invalid("/expires_at", "too_small", "It must be in the future.")
    _require_givable(caller, said["scopes"])
    minted = await keys.create_key(
        parts.database, caller.organisation_id, caller.key_prefix, body.team, said
    )
    if minted is None:
        raise not_found("team")
    response.headers["Location"] = f"/v1/keys/{minted.key.key_id}"
    return token_view(minted)


@router.get("/v1/keys/{key_id}", responses=answers(404), summary="Read a key")
async def get_key(caller: AdminCaller, parts: PartsOf, key_id: UUID) -> KeyView:
    """Read a key: whose it is, what it may do, when it was last used."""
    return key_view(await _key(parts, caller, key_id))


@router.patch(
    "/v1/keys/{key_id}",
    responses=answers(404, body=True),
    openapi_extra=request_body(ChangedKey, {"models": ["gemma-3-270m"], "expires_at": None}),
    summary="Change a key",
)
async def change_key(
    caller: AdminCaller,
    parts: PartsOf,
    key_id: UUID,
    body: Annotated[ChangedKey, Depends(json_body(ChangedKey))],
) -> KeyView:
    """Change a key. Every process heeds it from the next request on, running tasks included."""
    said = body.said()
    if "scopes" in said:
        has = (await _key(parts, caller, key_id)).scopes
        _require_givable(caller, [scope for scope in said["scopes"] if scope not in has])
    return await _changed(parts, caller, key_id, said, "key.changed")


@router.post("/v1/keys/{key_id}/disable", responses=answers(404), summary="Disable a key")
async def disable_key(caller: AdminCaller, parts: PartsOf, key_id: UUID) -> KeyView:
    """Switch a key off, at once and everywhere; what it has running stops before its next call."""
    return await _changed(parts, caller, key_id, {"enabled": False}, "key.disabled")


@router.post("/v1/keys/{key_id}/enable", responses=answers(404), summary="Enable a key")
async def enable_key(caller: AdminCaller, parts: PartsOf, key_id: UUID) -> KeyView:
    """Switch a key on again."""
    return await _changed(parts, caller, key_id, {"enabled": True}, "key.enabled")


@router.post(
    "/v1/keys/{key_id}/rotate",
    responses=answers(404, body=True),
    openapi_extra=request_body(Rotation, {"overlap_seconds": 3600}),
    summary="Give a key a new secret",
)
async def rotate_key(
    caller: AdminCaller,
    parts: PartsOf,
    key_id: UUID,
    body: Annotated[Rotation, Depends(json_body(Rotation))],
) -> TokenView:
    """Give a key a new secret, shown this once; the old one is good until the overlap ends.

    Id, budgets and restrictions stay. A key that may do more than one's own cannot be rotated.
    """
    _require_givable(caller, (await _key(parts, caller, key_id)).scopes)
    minted = await keys.rotate_key(
        parts.database,
        caller.organisation_id,
        caller.key_prefix,
        key_id,
        overlap_seconds=body.overlap_seconds,
    )
    if minted is None:
        raise not_found("key")
    return token_view(minted)


def _require_givable(caller: Principal, scopes: list[str]) -> None:
    """Refuse that somebody gives what they have not.

    `codec` reads what others wrote, and `interactive` goes before other organisations' tasks.

    Raises:
        ProblemError: 403.
    """
    for scope in scopes:
        if scope in ("codec", "interactive") and scope not in caller.scopes:
            raise forbidden(scope)


def _taken() -> ProblemError:
    return ProblemError(errors.Conflict, "There is a team of this name.")


async def _team(parts: Parts, caller: Principal, team_id: UUID) -> TeamView:
    team = await keys.get_team(parts.database, caller.organisation_id, team_id)
    if team is None:
        raise not_found("team")
    return team_view(team)


async def _key(parts: Parts, caller: Principal, key_id: UUID) -> keys.Key:
    key = await keys.get_key(parts.database, caller.organisation_id, key_id)
    if key is None:
        raise not_found("key")
    return key


async def _changed(
    parts: Parts, caller: Principal, key_id: UUID, said: dict[str, object], action: str
) -> KeyView:
    key = await keys.change_key(
        parts.database,
        caller.organisation_id,
        caller.key_prefix,
        key_id,
        said,
        action=action,
    )
    if key is None:
        raise not_found("key")
    return key_view(key)
