"""The conversion of a definition to data and back, for the journal.

An object that only a process can hold is named, and must be supplied again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.agent.typed.from_schema import hint_of
from ramet.agent.typed.schema import Types
from ramet.agent.typed.to_schema import schema_of
from ramet.core.agent_ref import AgentRef
from ramet.core.budget import Limits
from ramet.core.errors import DefinitionMissing, InvalidValue
from ramet.core.policy.policy import to_public_dict
from ramet.core.recipe import capability
from ramet.host.serialize import compositions
from ramet.host.serialize.references import reference_of, resolve
from ramet.models.resolve import model_name
from ramet.spawn.grants import PackedFunction

_PLAIN = (
    *("name", "description", "primer", "instructions", "read_only", "max_turns", "memory", "background"),
    *("initial_prompt", "setup", "concludes", "cache_ttl_seconds"),
)
_NAMES = ("disallowed_tools", "skills", "source_modules")


def recipe(agent: Agent) -> dict[str, Any]:
    """Return the data of a definition; objects are replaced by their names."""
    data: dict[str, Any] = {name: getattr(agent, name) for name in _PLAIN if getattr(agent, name)}
    data |= {name: list(getattr(agent, name)) for name in _NAMES if getattr(agent, name)}
    if agent.capabilities:
        data["capabilities"] = [each.data() for each in agent.capabilities]
    if agent.ref is not None:
        data["ref"] = str(agent.ref)
    if agent.tools is not None:
        data["tools"] = [each if isinstance(each, str) else each.name for each in agent.tool_entries or ()]
    if agent.model is not None:
        data["model"] = agent.model if isinstance(agent.model, str) else {"@object": model_name(agent.model)}
    if agent.function is not None:
        data["function"] = _encode_function(agent.function)
    if agent.output is not None:
        data["output"] = dict(agent.output) if isinstance(agent.output, Mapping) else _encode_type(agent.output)
    if agent.hooks is not None:
        data["hooks"] = {"@object": agent.name} if not _is_plain(agent.hooks) else msgspec.to_builtins(agent.hooks)
    if agent.policy is not None:
        data["policy"] = to_public_dict(agent.policy)
    if limits := agent.limits.as_data():
        data["limits"] = limits
    return data


def agent_of(data: Mapping[str, Any], *, agents: Mapping[str, Agent], model: Callable[[str], Any]) -> Agent:
    """Return the rebuilt definition, with the objects of the supplied definition of that name.

    `model` finds a model object by its name, or raises DefinitionMissing. Raises DefinitionMissing for a function or
    type that is not found.
    """
    fields: dict[str, Any] = {name: data[name] for name in (*_PLAIN, *_NAMES) if name in data}
    fields["capabilities"] = tuple(capability(each) for each in data.get("capabilities", ()))
    if "ref" in data:
        fields["ref"] = AgentRef.parse(data["ref"])
    supplied = agents.get(data["name"])
    if "tools" in data:
        tools_by_name = (
            {}
            if supplied is None
            else {each.name: each for each in supplied.tool_entries or () if not isinstance(each, str)}
        )
        fields["tools"] = tuple(tools_by_name.get(name, name) for name in data["tools"])
    if "model" in data:
        encoded = data["model"]
        if isinstance(encoded, str):
            fields["model"] = encoded
        elif supplied is not None and supplied.model is not None:
            fields["model"] = supplied.model
        else:
            fields["model"] = model(encoded["@object"])
    if "function" in data:
        fields["function"] = _decode_function(
            data["function"], supplied, lambda step: agent_of(step, agents=agents, model=model)
        )
    if "output" in data:
        encoded = data["output"]
        fields["output"] = (
            supplied.output if supplied is not None and supplied.output is not None else _decode_type(encoded)
        )
    if "hooks" in data:
        hooks = supplied.hooks if supplied is not None else data["hooks"]
        if isinstance(hooks, Mapping) and "@object" in hooks:
            raise DefinitionMissing("hooks of", data["name"])
        fields["hooks"] = hooks
    return Agent(limits=Limits(**data.get("limits", {})), **fields)


def _encode_function(function: Any) -> dict[str, Any]:
    if isinstance(function, Composition):
        return {"@composition": compositions.encode(function, recipe, _encode_function)}
    if isinstance(function, PackedFunction):
        return {"@capsule": function.__name__}
    try:
        return {"@reference": reference_of(function)}
    except InvalidValue:
        return {"@object": getattr(function, "__qualname__", repr(function))[:200]}


def _decode_function(
    data: Mapping[str, Any], supplied: Agent | None, step: Callable[[Mapping[str, Any]], Agent]
) -> Callable[..., Any]:
    if "@reference" in data:
        return resolve(data["@reference"])
    if supplied is not None and supplied.function is not None:
        return supplied.function
    if "@composition" in data:
        return compositions.decode(data["@composition"], step, lambda each: _decode_function(each, None, step))
    name = data.get("@capsule") or data.get("@object") or "?"

    def missing(*_: Any, **__: Any) -> Any:
        raise DefinitionMissing("function", name)

    missing.__name__ = name.rpartition(".")[2] or "function"
    return missing


def _encode_type(kind: Any) -> dict[str, Any]:
    """Return a class by its name; as data if its name does not lead back to it.

    A class that was made from data, for example, has no such name.
    """
    reference = f"{getattr(kind, '__module__', '')}:{getattr(kind, '__qualname__', '')}"
    with suppress(DefinitionMissing, InvalidValue):
        if resolve(reference) is kind:
            return {"@type": reference}
    types: Types = {}
    with suppress(InvalidValue):
        return {"@schema": schema_of(kind, types, "output"), "types": types}
    return {"@type": reference}


def _decode_type(data: Mapping[str, Any]) -> Any:
    if "@schema" in data:
        return hint_of(data["@schema"], data["types"], "output")
    return resolve(data["@type"]) if "@type" in data else data


def _is_plain(value: Any) -> bool:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError):
        return False
    return True
