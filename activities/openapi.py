"""HTTP tools out of an OpenAPI 3 document: an operation is a tool, its parameters the arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import httpx2

from activities.egress import Egress
from activities.tool_drafts import Answer, Draft, SourceRefused, ToolRefused, ToolUnavailable, draft

__all__ = ["call", "drafts"]

METHODS = ("get", "put", "post", "delete", "patch")
MOST_OPERATIONS = 100
MOST_DEPTH = 40
SHOWN_OF_AN_ERROR = 500


def drafts(
    document: Mapping[str, Any],
    *,
    source: str,
    base_url: str | None,
    document_url: str | None,
    operations: Sequence[str],
    auth: Sequence[dict[str, Any]],
) -> list[Draft]:
    """Return the tools of a document.

    Args:
        document: OpenAPI 3.
        source: Name of the registration.
        base_url: Where the operations are; by default the document's first server.
        document_url: Where the document was, for a server that is relative to it.
        operations: Which, by `operationId`; none: all.
        auth: Headers with secrets, as stored.

    Raises:
        SourceRefused: It is no such document, or an operation cannot become a tool.
    """
    if not str(document.get("openapi", "")).startswith("3."):
        raise SourceRefused("not an OpenAPI 3 document")
    base = base_url or _server(document, document_url)
    # A brace in it would let an argument choose the host.
    if urlsplit(base).scheme not in ("http", "https") or "{" in base:
        raise SourceRefused("the operations have no absolute address; give base_url")
    paths = document.get("paths")
    found: dict[str, Draft] = {}
    for path, item in (paths if isinstance(paths, dict) else {}).items():
        for method in METHODS:
            operation = item.get(method) if isinstance(item, dict) else None
            if not isinstance(operation, dict):
                continue
            name = str(operation.get("operationId") or f"{method}_{path.strip('/')}")
            if operations and name not in operations:
                continue
            parameters = [*_list(item, "parameters"), *_list(operation, "parameters")]
            found[name] = _draft(
                document, source, name, method, base, path, operation, parameters, auth
            )
    if missing := [name for name in operations if name not in found]:
        raise SourceRefused(f"the document has no operation {missing[0]!r}")
    if not 1 <= len(found) <= MOST_OPERATIONS:
        raise SourceRefused(f"1 to {MOST_OPERATIONS} operations are taken, not {len(found)}")
    return list(found.values())


def _server(document: Mapping[str, Any], document_url: str | None) -> str:
    servers = _list(document, "servers")
    url = servers[0].get("url") if servers and isinstance(servers[0], dict) else None
    return urljoin(document_url, str(url or "/")) if document_url else str(url or "")


def _draft(
    document: Mapping[str, Any],
    source: str,
    name: str,
    method: str,
    base: str,
    path: str,
    operation: dict[str, Any],
    parameters: list[Any],
    auth: Sequence[dict[str, Any]],
) -> Draft:
    reader = _Reader(document, name)
    properties: dict[str, Any] = {}
    required: list[str] = []
    places: dict[str, list[str]] = {"path": [], "query": []}
    for raw in parameters:
        parameter = reader.resolved(raw)
        where, argument = parameter.get("in"), str(parameter.get("name", ""))
        if where not in places:
            if parameter.get("required"):
                raise SourceRefused(f"{name}: a required parameter in {where} is not supported")
            continue
        if argument not in properties:
            places[where].append(argument)
        properties[argument] = {
            **reader.schema(parameter.get("schema") or {"type": "string"}),
            **({"description": parameter["description"]} if "description" in parameter else {}),
        }
        if parameter.get("required") or where == "path":
            required.append(argument)
    body = reader.resolved(operation.get("requestBody") or {})
    content = body.get("content")
    json_body = content.get("application/json") if isinstance(content, dict) else None
    if isinstance(json_body, dict):
        properties["body"] = reader.schema(json_body.get("schema") or {"type": "object"})
        if body.get("required"):
            required.append("body")
    elif body.get("required"):
        raise SourceRefused(f"{name}: only JSON bodies are supported")
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "required": list(dict.fromkeys(required)),
        "additionalProperties": False,
        **({"$defs": reader.definitions} if reader.definitions else {}),
    }
    target = {
        "method": method.upper(),
        "url": base.rstrip("/") + path,
        **places,
        "body": isinstance(json_body, dict),
        "auth": list(auth),
    }
    description = str(operation.get("summary") or operation.get("description") or "")
    return draft(source, name, description, schema, target)


class _Reader:
    """Follows references within the document; what they lead to becomes the schema's own."""

    def __init__(self, document: Mapping[str, Any], operation: str) -> None:
        self._document = document
        self._operation = operation
        self.definitions: dict[str, Any] = {}

    def resolved(self, item: Any) -> dict[str, Any]:
        for _ in range(MOST_DEPTH):
            if not isinstance(item, dict):
                break
            if "$ref" not in item:
                return item
            item = self._target(item["$ref"])
        raise SourceRefused(f"{self._operation}: a reference that leads nowhere")

    def schema(self, schema: Any, depth: int = 0) -> Any:
        if depth > MOST_DEPTH:
            raise SourceRefused(f"{self._operation}: a schema nested too deeply")
        if isinstance(schema, list):
            return [self.schema(each, depth + 1) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" not in schema:
            return {key: self.schema(value, depth + 1) for key, value in schema.items()}
        target = self._target(schema["$ref"])
        name = str(schema["$ref"]).rpartition("/")[2]
        if name not in self.definitions:
            # Named before it is read: a schema may contain itself.
            self.definitions[name] = {}
            self.definitions[name] = self.schema(target, depth + 1)
        return {"$ref": f"#/$defs/{name}"}

    def _target(self, ref: Any) -> Any:
        found: Any = self._document
        parts = str(ref).removeprefix("#/").split("/") if str(ref).startswith("#/") else [""]
        for part in parts:
            key = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise SourceRefused(f"{self._operation}: a reference that leads nowhere")
            found = found[key]
        return found


def _list(item: Mapping[str, Any], name: str) -> list[Any]:
    value = item.get(name)
    return value if isinstance(value, list) else []


async def call(
    egress: Egress,
    target: Mapping[str, Any],
    arguments: Mapping[str, Any],
    *,
    headers: Mapping[str, str],
    call_id: str,
    timeout_s: float,
    max_bytes: int,
) -> Answer:
    """Make a call.

    Raises:
        ToolRefused: It cannot be made, or the answer is one that another try would get again.
        ToolUnavailable: The service is busy or broken.
        EgressRefused: It may not be reached.
        AnswerTooLarge: It answered at too great a length.
        httpx2.HTTPError: It did not answer.
    """
    url = _url(target, arguments)
    query = {
        name: _text(arguments[name]) for name in target["query"] if arguments.get(name) is not None
    }
    async with (
        egress.client(timeout_s=timeout_s, max_bytes=max_bytes, headers=headers) as http,
        http.stream(
            target["method"],
            url,
            params=query or None,
            json=arguments["body"] if target["body"] and "body" in arguments else None,
            headers={"Idempotency-Key": call_id, "accept": "application/json, text/*;q=0.9"},
        ) as response,
    ):
        raw = await response.aread()
    status = response.status_code
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    text = raw.decode(response.charset_encoding or "utf-8", "replace")
    if response.is_redirect or 300 <= status < 400:
        raise ToolRefused(f"it answered with a redirect ({status}), and none is followed")
    if status == 429 or status >= 500:
        raise ToolUnavailable(f"it answered {status}", _seconds(response))
    if status >= 400:
        return Answer(f"HTTP {status}: {text[:SHOWN_OF_AN_ERROR]}", ok=False)
    if kind.endswith("json"):
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise ToolRefused("it says it answers in JSON, and what it sent is none") from None
    elif text and not kind.startswith("text/"):
        raise ToolRefused(f"it answered with {kind or 'something without a type'}, not with text")
    return Answer(text or f"done ({status}, no content)")


def _url(target: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    url = str(target["url"])
    for name in target["path"]:
        value = _text(arguments[name])
        # Another path than the one that was registered must not come of it.
        if value in ("", ".", ".."):
            raise ToolRefused(f"argument {name!r} cannot stand in a path")
        url = url.replace("{" + name + "}", quote(value, safe=""))
    return url


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _seconds(response: httpx2.Response) -> float | None:
    value = response.headers.get("retry-after", "")
    return min(float(value), 60.0) if value.isascii() and value.isdigit() else None
