"""The OpenAPI document says what the routes do; `RAMET_GOLDEN=write` refreshes it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec

from ramet.services.http import openapi
from ramet.services.http.routes.table import OPERATIONS, document
from tests.unit.cli.golden import assert_golden


def test_the_document_is_as_it_was_approved() -> None:
    """Every path, parameter and structure."""
    made = openapi.document(OPERATIONS, "0")
    assert_golden("openapi.json", json.dumps(json.loads(msgspec.json.encode(made)), indent=2, sort_keys=True) + "\n")


def test_every_reference_leads_somewhere() -> None:
    """And every schema is one of JSON Schema 2020-12, as OpenAPI 3.1 says."""
    made = json.loads(document())
    named = set(re.findall(r'"#/components/schemas/([^"]+)"', document().decode()))

    assert named <= set(made["components"]["schemas"])
    for schema in made["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_operations_have_one_name_and_one_place_each() -> None:
    """An id is a method's name in generated clients."""
    ids = [each.id for each in OPERATIONS]
    places = [(each.method, each.path) for each in OPERATIONS]

    assert len(set(ids)) == len(ids)
    assert len(set(places)) == len(places)


def test_the_structures_take_what_they_show() -> None:
    """An example of each request validates against its schema, and a field too many does not."""
    made: dict[str, Any] = json.loads(document())
    spawn = {"$ref": "#/components/schemas/SpawnAgent", "components": made["components"]}
    example = {"team": "t", "name": "n", "agent_type": "llm", "spawn_info": {"any": ["thing"]}}

    jsonschema.validate(example, spawn)
    assert not jsonschema.Draft202012Validator(spawn).is_valid({**example, "other": 1})
    assert not jsonschema.Draft202012Validator(spawn).is_valid({"team": "t"})
