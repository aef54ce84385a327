"""Encode an agent's result for its record, and decode it to the type that its function or contract declares."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec

from ramet.agent.definition import Agent
from ramet.agent.output import OutputContract
from ramet.core.errors import InvalidValue, NotShippable
from ramet.core.outcome import safe_repr
from ramet.models.json_values import to_json_value
from ramet.wire.values.annotations import returned_type
from ramet.wire.values.journal_values import from_record, record_json, to_record


def encode_result(agent: Agent, value: Any) -> Any:
    """Return a value as JSON for the record: an answer by its contract, data as data, other values as type and repr.

    Plain lists and dicts are returned as JSON text, as `msgspec.Raw`: no copy of a large value is made.
    """
    if value is not None and agent.output is not None and agent.function is None:
        return OutputContract(agent.output).data(value)
    if type(value) in (list, dict) and (text := record_json(value)) is not None:
        return msgspec.Raw(text)
    with suppress(InvalidValue):
        data = to_json_value(value, "value")
        if b'"@' not in msgspec.json.encode(data):  # Otherwise a key may look like a type of ramet's.
            return data
    try:
        return to_record(value)
    except NotShippable:
        return {"@type": f"{type(value).__module__}.{type(value).__qualname__}", "repr": safe_repr(value)[:1000]}


def decode_result(agent: Agent, data: Any) -> Any:
    """Return the decoded value. Raises InvalidValue, ProtocolError or DoesNotFit if the type has changed.

    Raises DefinitionMissing for a value that was not data.
    """
    if agent.function is not None:
        return from_record(data, returned_type(agent.function))
    if agent.output is not None and data is not None:
        return OutputContract(agent.output).parse(json.dumps(data))
    return from_record(data)
