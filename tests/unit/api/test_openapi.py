"""The OpenAPI document is complete: every field, every error, every key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from api.app import create_app
from api.openai.errors import speaks_openai
from settings import Settings

#: What answers without a key. Anything else without one is a mistake.
PUBLIC = {
    ("get", "/healthz"),
    ("get", "/readyz"),
    ("get", "/metrics"),
    ("post", "/codec/{capability}/decode"),
    ("post", "/codec/{capability}/download"),
    ("post", "/codec/{capability}/encode"),
}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """The document of an application that never starts."""
    return create_app(Settings()).openapi()


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            yield verb, path, operation


def test_the_promised_surface_is_there(document: dict[str, Any]) -> None:
    assert {(verb, path) for verb, path, _ in _operations(document)} >= {
        ("post", "/v1/tasks"),
        ("get", "/v1/tasks"),
        ("get", "/v1/tasks/{task_id}"),
        ("get", "/v1/tasks/{task_id}/steps"),
        ("get", "/v1/tasks/{task_id}/events"),
        ("post", "/v1/tasks/{task_id}/cancel"),
        ("post", "/v1/collections"),
        ("get", "/v1/collections"),
        ("post", "/v1/collections/{collection}/documents"),
        ("get", "/v1/spend"),
        ("post", "/codec/decode"),
        *PUBLIC,
    }


def test_every_property_is_described(document: dict[str, Any]) -> None:
    silent = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, facts in schema.get("properties", {}).items()
        if not facts.get("description")
    ]
    assert silent == []


def test_money_and_times_say_their_unit(document: dict[str, Any]) -> None:
    units = {"_usd": "USD", "_ms": "milliseconds", "_tokens": "tokens", "_at": "RFC 3339"}
    silent = [
        f"{name}.{field}"
        for name, schema in document["components"]["schemas"].items()
        for field, facts in schema.get("properties", {}).items()
        for suffix, unit in units.items()
        if field.endswith(suffix) and unit not in facts["description"]
    ]
    assert silent == []


def test_every_schema_parameter_and_operation_is_described(document: dict[str, Any]) -> None:
    silent = [
        name
        for name, schema in document["components"]["schemas"].items()
        if not schema.get("description")
    ]
    for verb, path, operation in _operations(document):
        if not operation.get("summary") or not operation.get("description"):
            silent.append(f"{verb} {path}")
        silent += [
            f"{verb} {path} {parameter['name']}"
            for parameter in operation.get("parameters", ())
            if parameter["in"] != "path" and not parameter.get("description")
        ]
    assert silent == []


def test_every_error_is_a_problem_document_or_openais(document: dict[str, Any]) -> None:
    for verb, path, operation in _operations(document):
        codes = set(operation["responses"])
        # What cannot be used is a 400 to OpenAI's clients.
        assert {"400" if speaks_openai(path) else "422", "500", "503"} <= codes, (verb, path)
        if operation.get("requestBody"):
            assert {"400", "413", "415"} <= codes, (verb, path)
        if "{" in path and not path.startswith("/codec"):
            assert "404" in codes, (verb, path)
        kind, name = "application/problem+json", "Problem"
        if speaks_openai(path):
            kind, name = "application/json", "OpenAIErrorDocument"
        for code, answer in operation["responses"].items():
            if int(code) >= 400:
                assert answer["content"] == {
                    kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}
                }, (verb, path, code)


def test_the_calls_have_all_refusals_and_a_repeated_key_is_the_only_422(
    document: dict[str, Any],
) -> None:
    calls = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
    for path in calls:
        said = document["paths"][path]["post"]["responses"]
        assert {"402", "409", "429"} <= set(said), path
        assert "Retry-After" in said["429"]["headers"], path
    repeatable = {
        path
        for _, path, operation in _operations(document)
        if speaks_openai(path) and "422" in operation["responses"]
    }
    assert repeatable == {*calls, "/v1/batches"}


def test_everything_needs_a_key_unless_listed(document: dict[str, Any]) -> None:
    for verb, path, operation in _operations(document):
        if (verb, path) in PUBLIC:
            assert not operation.get("security"), (verb, path)
        else:
            assert operation["security"] == [{"ApiKey": []}], (verb, path)
            assert {"401", "403"} <= set(operation["responses"]), (verb, path)


def test_every_reference_resolves(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    def references(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            if isinstance(node.get("$ref"), str):
                yield node["$ref"]
            for value in node.values():
                yield from references(value)
        elif isinstance(node, list):
            for value in node:
                yield from references(value)

    missing = {
        reference
        for reference in references(document)
        if reference.removeprefix("#/components/schemas/") not in schemas
    }
    assert missing == set()


def test_bodies_refuse_unknown_fields(document: dict[str, Any]) -> None:
    for _, path, operation in _operations(document):
        body = operation.get("requestBody")
        # A form's fields are looked at where it is read.
        if body and "multipart/form-data" not in body["content"]:
            reference = body["content"]["application/json"]["schema"]["$ref"]
            schema = document["components"]["schemas"][reference.rpartition("/")[2]]
            assert schema["additionalProperties"] is False, path
