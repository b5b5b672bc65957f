"""Files: what batches read and write, kept per organisation until they expire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from uuid_utils.compat import uuid7

from api.authentication import Caller, parts_of
from api.openai.errors import OpenAIError, error_of
from api.openai.fields import refuse_unsupported
from api.openai.files import FilePieces, file_id_of, file_object, keep_of
from api.openai.pages import page_of
from api.openapi import openai_answers
from api.parts import Parts
from api.uploads import Form, read_form
from store import files
from store.errors import StoreError
from store.files import StoredFile
from store.identity import Principal
from workflows import errors

__all__ = ["router"]

router = APIRouter(tags=["openai"])

PartsOf = Annotated[Parts, Depends(parts_of)]

_FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "JSON Lines: on each `custom_id`, `method`, `url` and "
                            "`body`.",
                        },
                        "purpose": {
                            "type": "string",
                            "enum": ["batch"],
                            "description": "What it is for.",
                        },
                        "expires_after[anchor]": {
                            "type": "string",
                            "enum": ["created_at"],
                            "description": "From when on `seconds` count.",
                        },
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": 3600,
                            "maximum": 2592000,
                            "description": "For how many seconds it is kept.",
                        },
                    },
                }
            }
        },
    }
}


@router.post(
    "/v1/files",
    responses=openai_answers(413, 415),
    summary="Keep a file",
    openapi_extra=_FORM,
)
async def create_file(request: Request, caller: Caller, parts: PartsOf) -> Response:
    """Keep the input of a batch: JSON Lines, each line a request.

    It is written piece by piece as it comes, and every line is looked at on the way: the first one
    that is none ends the upload with its number, and nothing is kept.
    """
    settings = parts.settings
    file_id = uuid7()
    pieces = FilePieces(
        parts.database,
        caller.organisation_id,
        file_id,
        most_bytes=settings.max_file_bytes,
        longest_line=settings.max_request_bytes,
    )
    await files.begin_file(
        parts.database,
        caller.organisation_id,
        file_id=file_id,
        team_id=caller.team_id,
        key_id=caller.key_id,
        filename="",
        purpose="batch",
        keep=timedelta(days=settings.keep_days),
    )
    try:
        form = await read_form(
            request.headers.get("content-type", ""),
            request.stream(),
            file_field="file",
            take=pieces.take,
        )
        keep = _asked(form, settings.keep_days)
        await pieces.end()
        stored = await files.finish_file(
            parts.database,
            caller.organisation_id,
            file_id,
            size=pieces.size,
            lines=pieces.lines,
            filename=form.filename,
            keep=keep,
        )
    except BaseException:
        await _forget(parts, caller, file_id)
        raise
    return JSONResponse(file_object(stored))


@router.get("/v1/files", responses=openai_answers(), summary="List files")
async def list_files(
    caller: Caller,
    parts: PartsOf,
    purpose: Annotated[str | None, Query(max_length=64, description="Only of this one.")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000, description="At most so many.")] = 1_000,
    order: Annotated[Literal["asc", "desc"], Query(description="By time.")] = "desc",
    after: Annotated[str | None, Query(max_length=64, description="Id of a file.")] = None,
) -> Response:
    """List the organisation's files, newest first unless said otherwise."""
    page = await files.list_files(
        parts.database,
        caller.organisation_id,
        limit=limit,
        after=None if after is None else _id(after, "after"),
        purpose=purpose,
        newest_first=order == "desc",
    )
    return JSONResponse(page_of([file_object(file) for file in page.files], more=page.more))


@router.get("/v1/files/{file_id}", responses=openai_answers(404), summary="Read about a file")
async def get_file(file_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Read what is known of one."""
    return JSONResponse(file_object(await _found(parts, caller, file_id)))


@router.get(
    "/v1/files/{file_id}/content",
    responses={
        200: {
            "description": "The bytes.",
            "content": {"application/octet-stream": {"schema": {"type": "string"}}},
        },
        **openai_answers(404),
    },
    response_class=Response,
    summary="Read a file",
)
async def get_file_content(file_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Read its bytes, as they were sent or as a batch wrote them.

    Only keys of its team do: what a policy took out of texts is in the clear there.
    """
    file = await _found(parts, caller, file_id)
    if file.team_id != caller.team_id:
        raise error_of(
            errors.Forbidden,
            "This file is another team's: only keys of that team read what is in it.",
            code="other_team",
        )

    async def content() -> AsyncIterator[bytes]:
        async for part in files.parts_of(parts.database, caller.organisation_id, file.file_id):
            yield part

    return StreamingResponse(
        content(),
        media_type="application/octet-stream",
        headers={"Content-Length": str(file.size)},
    )


@router.delete("/v1/files/{file_id}", responses=openai_answers(404, 409), summary="Delete a file")
async def delete_file(file_id: str, caller: Caller, parts: PartsOf) -> Response:
    """Delete one; not while a batch reads it."""
    wanted = file_id_of(file_id)
    done = (
        await files.delete_file(parts.database, caller.organisation_id, wanted)
        if wanted is not None
        else None
    )
    if done is None:
        raise _missing()
    if not done:
        raise OpenAIError(
            409,
            "A batch still reads this file; cancel the batch, or wait for its end.",
            code="file_in_use",
            headers={"x-should-retry": "false"},
        )
    return JSONResponse({"id": file_id, "object": "file", "deleted": True})


def _asked(form: Form, keep_days: int) -> timedelta:
    """Return how long a form's file is kept.

    Raises:
        OpenAIError: The form asks for what there is not (400).
    """
    fields = dict(form.fields)
    purpose = fields.pop("purpose", None)
    anchor = fields.pop("expires_after[anchor]", None)
    seconds = fields.pop("expires_after[seconds]", None)
    if form.filename is None or purpose is None:
        name = "file" if form.filename is None else "purpose"
        raise OpenAIError(
            400,
            f"Missing required parameter: '{name}'.",
            code="missing_required_parameter",
            param=name,
        )
    if purpose != "batch":
        raise refuse_unsupported("purpose", "files are kept for batches: 'batch'")
    for name in fields:
        shown = name[:80]
        raise OpenAIError(
            400, f"Unknown parameter: '{shown}'.", code="unknown_parameter", param=shown
        )
    return keep_of(anchor, seconds, keep_days, "expires_after")


async def _forget(parts: Parts, caller: Principal, file_id: UUID) -> None:
    try:
        await files.discard_file(parts.database, caller.organisation_id, file_id)
    except StoreError:
        # Nobody can name it, and housekeeping removes it.
        return


async def _found(parts: Parts, caller: Principal, text: str) -> StoredFile:
    wanted = file_id_of(text)
    found = (
        await files.get_file(parts.database, caller.organisation_id, wanted)
        if wanted is not None
        else None
    )
    if found is None:
        raise _missing()
    return found


def _id(text: str, param: str) -> UUID:
    wanted = file_id_of(text)
    if wanted is None:
        raise OpenAIError(400, f"'{param}' is no file's id.", code="invalid_value", param=param)
    return wanted


def _missing() -> OpenAIError:
    return OpenAIError(404, "There is no such file.", code="not_found", param="id")
