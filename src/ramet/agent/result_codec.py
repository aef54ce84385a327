"""What an agent left, as its record has it, and back: the value that its function or its contract promises."""

from __future__ import annotations

import json
from typing import Any

from ramet.agent.definition import Agent
from ramet.agent.output import OutputContract
from ramet.core.errors import InvalidValue, NotShippable
from ramet.core.outcome import safe_repr
from ramet.models.json_values import to_json_value
from ramet.wire.values.annotations import returned_type
from ramet.wire.values.journal_values import from_record, to_record


def recorded(agent: Agent, value: Any) -> Any:
    """A value as JSON for the record: an answer by its contract, data as data, anything else as what it is."""
    if value is not None and agent.output is not None and agent.function is None:
        return OutputContract(agent.output).data(value)
    try:
        return to_json_value(value, "value")
    except InvalidValue:
        pass
    try:
        return to_record(value)
    except NotShippable:
        return {"@type": f"{type(value).__module__}.{type(value).__qualname__}", "repr": safe_repr(value)[:1000]}


def value_of(agent: Agent, data: Any) -> Any:
    """The value again. Raises InvalidValue, ProtocolError or DoesNotFit where the definition promises another one now.

    DefinitionMissing is raised for a value that was no data.
    """
    if agent.function is not None:
        return from_record(data, returned_type(agent.function))
    if agent.output is not None and data is not None:
        return OutputContract(agent.output).parse(json.dumps(data))
    return from_record(data)
