"""`/docs`: the OpenAPI document as one page, without script or anything from elsewhere."""

from __future__ import annotations

from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
code { background: #f2f2f2; padding: .1em .3em; border-radius: 3px }
summary { cursor: pointer; padding: .4em 0 }
details { border-bottom: 1px solid #ddd }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .3em .6em; border-bottom: 1px solid #ddd }
.verb { display: inline-block; width: 4em }
"""


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """Show every operation and every schema."""
    document: dict[str, Any] = request.app.openapi()
    operations = "".join(
        _operation(path, verb, operation)
        for path, verbs in document["paths"].items()
        for verb, operation in verbs.items()
    )
    schemas = "".join(
        _schema(name, schema) for name, schema in sorted(document["components"]["schemas"].items())
    )
    description = "".join(
        f"<p>{_text(part)}</p>" for part in document["info"]["description"].split("\n\n")
    )
    return HTMLResponse(
        f"<!doctype html><html lang=en><meta charset=utf-8><title>Overline API</title>"
        f"<style>{_STYLE}</style><h1>Overline API {escape(document['info']['version'])}</h1>"
        f"{description}<p>The document itself: <a href=/openapi.json>/openapi.json</a></p>"
        f"<h2>Operations</h2>{operations}<h2>Schemas</h2>{schemas}</html>",
        headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


def _operation(path: str, verb: str, operation: dict[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(code))}<td>{_text(answer['description'])}"
        for code, answer in operation["responses"].items()
    )
    parameters = "".join(
        f"<tr><td><code>{escape(item['name'])}</code> <small>{escape(item['in'])}</small>"
        f"<td>{_text(item.get('description', ''))}"
        for item in operation.get("parameters", ())
    )
    return (
        f"<details><summary><code class=verb>{verb.upper()}</code> <code>{escape(path)}</code> "
        f"{_text(operation.get('summary', ''))}</summary>"
        f"<p>{_text(operation.get('description', ''))}<table>{parameters}</table>"
        f"<table><tr><th>status<th>meaning{rows}</table></details>"
    )


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = set(schema.get("required", ()))
    optional = " <small>optional</small>"
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{'' if field in required else optional}"
        f"<td>{_text(facts.get('description', ''))}"
        for field, facts in schema.get("properties", {}).items()
    )
    return (
        f"<details><summary><code>{escape(name)}</code></summary>"
        f"<p>{_text(schema.get('description', ''))}<table>{rows}</table></details>"
    )


def _text(text: str) -> str:
    """Escape a text and set what is in backquotes as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
