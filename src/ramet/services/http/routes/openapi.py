"""The OpenAPI document, built from the table of operations and from the structures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from types import NoneType
from typing import Any

import msgspec
from msgspec import NODEFAULT, Raw, Struct
from msgspec.structs import FieldInfo, fields

from ramet.services.http.endpoints import BYTES, EVENT_STREAM, JSON
from ramet.services.http.request import is_optional_body
from ramet.services.http.routes.operation import Operation
from ramet.services.idempotency.attempts import HEADER, MOST_CHARS
from ramet.services.problems import MEDIA_TYPE

_NO_SCHEMA = (None, NoneType, bytes)
_REFS = "#/components/schemas/{name}"
#: The schema of one event: OpenAPI's tools read a stream as a sequence of events.
_EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "event": {"type": "string"}, "data": {"type": "string"}},
    "required": ["data"],
    "description": (
        "Server-sent events. `id` is what Last-Event-ID resumes by. An event whose name ends in `-base64` "
        "carries bytes that lines of text would not give back."
    ),
}


class ProblemDocument(Struct):
    """An error (RFC 9457): `type` is what programs tell it by, `detail` is for people; more fields may follow."""

    type: str
    title: str
    status: int
    detail: str


def document(operations: Sequence[Operation], version: str) -> dict[str, Any]:
    """Return the whole document. Operations of the same path are grouped."""
    endpoints = [each.endpoint for each in operations]
    kinds = [kind for each in endpoints for kind in (each.takes, each.query, each.answers) if kind not in _NO_SCHEMA]
    kinds = list(dict.fromkeys([ProblemDocument, *kinds]))
    schemas, components = msgspec.json.schema_components(
        map(_schema_type, kinds), ref_template=_REFS, schema_hook=_opaque_schema
    )
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.endpoint.path, {})[each.endpoint.method.lower()] = _operation(each, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "ramet",
            "version": version,
            "description": "Teams, turns, control, packaging: agents as services that any program can use.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(each: Operation, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    endpoint = each.endpoint
    document: dict[str, Any] = {"operationId": endpoint.id, "summary": each.summary}
    if parameters := _parameters(each, schema_of, components):
        document["parameters"] = parameters
    if endpoint.takes is not None:
        required = not is_optional_body(endpoint.takes)
        document["requestBody"] = {"required": required, "content": {JSON: {"schema": schema_of[endpoint.takes]}}}
    elif endpoint.media:
        # A message may be empty: the agent decides about that.
        document["requestBody"] = {"required": endpoint.media != BYTES, "content": {endpoint.media: {"schema": {}}}}
    document["responses"] = {str(each.status): _answer(each, schema_of)}
    document["responses"] |= {str(status): _problem(status, each, schema_of) for status in sorted(_refusals(each))}
    document["security"] = [{"bearer": []}, {"key": []}] if each.needs_key else []
    return document


def _parameters(each: Operation, schema_of: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    endpoint = each.endpoint
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", endpoint.path)
    ]
    if endpoint.query is not None:
        schema = components[schema_of[endpoint.query]["$ref"].rpartition("/")[2]]
        parameters += [{"name": name, "in": "query", "schema": field} for name, field in schema["properties"].items()]
    if each.resumes:
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}})
    if endpoint.method == "POST":
        key = {"type": "string", "minLength": 1, "maxLength": MOST_CHARS, "pattern": "^[ -~]+$"}
        parameters.append({"name": HEADER, "in": "header", "schema": key})
    return parameters


def _answer(each: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if each.endpoint.answers not in _NO_SCHEMA:
        content[JSON] = {"schema": schema_of[each.endpoint.answers]}
    if each.stream:
        content[EVENT_STREAM] = {"schema": _EVENT}
    response: dict[str, Any] = {"description": HTTPStatus(each.status).phrase}
    return response | ({"content": content} if content else {})


def _refusals(each: Operation) -> set[int]:
    """Return the statuses of all refusals: of any request, of keys, of bodies, of values, and of the operation."""
    endpoint = each.endpoint
    statuses = {431, 500, 503, *each.refuses}
    if each.needs_key:
        statuses |= {401, 404}
    if endpoint.takes is not None or endpoint.media:
        statuses |= {400, 408, 413, 429}
    if endpoint.method == "POST":
        statuses |= {409, 410, 422}  # of an Idempotency-Key
    if endpoint.takes is not None or endpoint.media or endpoint.query is not None:
        statuses.add(422)
    return statuses


def _problem(status: int, each: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {MEDIA_TYPE: {"schema": schema_of[ProblemDocument]}}
    if each.own_error_form:
        content[JSON] = {"schema": {"type": "object", "required": ["error"]}}
    return {"description": HTTPStatus(status).phrase, "content": content}


def _opaque_schema(kind: type) -> dict[str, Any]:
    """Return an empty schema, for values that are passed on unchanged."""
    return {}


def _schema_type(kind: Any) -> Any:
    """Return a structure for its schema, in which fields that are passed on unchanged accept any value."""
    if not (isinstance(kind, type) and issubclass(kind, Struct)):
        return kind
    struct_fields = fields(kind)
    if not any(isinstance(each.default, Raw) for each in struct_fields):
        return kind
    schema_type = msgspec.defstruct(
        kind.__name__, [_field(each) for each in struct_fields], kw_only=True, forbid_unknown_fields=True
    )
    schema_type.__doc__ = kind.__doc__
    return schema_type


def _field(each: FieldInfo) -> Any:
    if isinstance(each.default, Raw):
        return each.name, Any, None
    if each.default_factory is not NODEFAULT:
        return each.name, each.type, msgspec.field(default_factory=each.default_factory)
    return (each.name, each.type) if each.required else (each.name, each.type, each.default)
