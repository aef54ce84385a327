"""The OpenAPI document describes the routes; `RAMET_GOLDEN=write` refreshes it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec

from ramet.services.http.routes import openapi
from ramet.services.http.routes.table import OPERATIONS, document
from tests.unit.cli.golden import assert_golden


def test_the_document_equals_the_approved_one() -> None:
    """The document has every path, parameter and structure."""
    schema = openapi.document(OPERATIONS, "0")
    assert_golden("openapi.json", json.dumps(json.loads(msgspec.json.encode(schema)), indent=2, sort_keys=True) + "\n")


def test_every_reference_has_a_schema() -> None:
    """Each schema is valid JSON Schema 2020-12, as OpenAPI 3.1 demands."""
    spec = json.loads(document())
    references = set(re.findall(r'"#/components/schemas/([^"]+)"', document().decode()))

    assert references <= set(spec["components"]["schemas"])
    for schema in spec["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_each_operation_has_its_own_id_and_route() -> None:
    """Generated clients use the id as a method's name."""
    ids = [each.endpoint.id for each in OPERATIONS]
    routes = [(each.endpoint.method, each.endpoint.path) for each in OPERATIONS]

    assert len(set(ids)) == len(ids)
    assert len(set(routes)) == len(routes)


def test_a_schema_accepts_its_example_and_no_unknown_field() -> None:
    """A missing field is refused too."""
    schema: dict[str, Any] = json.loads(document())
    spawn = {"$ref": "#/components/schemas/SpawnAgent", "components": schema["components"]}
    example = {"team": "t", "name": "n", "agent_type": "llm", "spawn_info": {"any": ["thing"]}}

    jsonschema.validate(example, spawn)
    assert not jsonschema.Draft202012Validator(spawn).is_valid({**example, "other": 1})
    assert not jsonschema.Draft202012Validator(spawn).is_valid({"team": "t"})
