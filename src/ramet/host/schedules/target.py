"""The target of a schedule, kept as data: a function by reference, a definition by its fields, or one by name."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from ramet.agent.definition import Agent, as_agent
from ramet.agent.external.external import External
from ramet.core.arguments import is_unicode
from ramet.core.errors import DefinitionMissing, InvalidValue, Unknown
from ramet.core.limits import Limits
from ramet.core.policy import policy as policies
from ramet.core.policy.permissions import Permissions
from ramet.core.policy.policy import Policy
from ramet.core.schedules.schedule import AgentTarget, FunctionTarget, NamedTarget
from ramet.host.serialize.references import is_reference, reference_of, resolve

Target = FunctionTarget | AgentTarget | NamedTarget
Definitions = Callable[[], Mapping[str, Agent]]

MAX_DATA = 256 * 1024
_DEPTH = 50
_PLAIN = "plain JSON data: None, bool, whole numbers of 64 bits, finite floats, str, list, dict with str keys"
_AGENT = "a function, the name of a definition of the project, module:function, or a ramet.Agent that is plain data"
_BY_VALUE = ("policy", "limits", "permissions", "source", "function")


class LoadedTarget(NamedTuple):
    """A loaded target: the agent to spawn, and the definitions that it may spawn by name."""

    agent: Agent | Callable[..., Any]
    definitions: Mapping[str, Agent]


def target_of(agent: object, definitions: Definitions) -> Target:
    """Return the stored form of `agent`.

    Raises InvalidValue if a later process could not find it; Unknown for a name.
    """
    if isinstance(agent, str):
        if is_reference(agent):
            try:
                resolve(agent)
            except DefinitionMissing as problem:
                raise InvalidValue("agent", agent, f"a function that can be imported ({problem.__cause__})") from None
            return FunctionTarget(reference=agent)
        available = definitions()
        if agent not in available:
            raise Unknown("definition", agent, tuple(sorted(available)))
        _check_model(available[agent])
        return NamedTarget(name=agent)
    if isinstance(agent, Agent | Mapping):
        return AgentTarget(fields=_fields_of(as_agent(agent)))
    if callable(agent):
        return FunctionTarget(reference=reference_of(agent))
    raise InvalidValue("agent", agent, _AGENT)


def load(target: Target, definitions: Definitions) -> LoadedTarget:
    """Return the present object of a target.

    Raises DefinitionMissing if it is gone, InvalidValue if it is invalid now.
    """
    if isinstance(target, FunctionTarget):
        return LoadedTarget(resolve(target.reference), {})
    available = definitions()
    if isinstance(target, AgentTarget):
        return LoadedTarget(_agent_of(target.fields), available)
    if target.name not in available:
        raise DefinitionMissing("definition", target.name)
    return LoadedTarget(available[target.name], available)


def plain(field: str, value: Any, _depth: int = 0) -> Any:
    """Return `value` if it is unchanged by JSON; raise InvalidValue naming the part that is not."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, list) and _depth < _DEPTH:
        for index, each in enumerate(value):
            plain(f"{field}[{index}]", each, _depth + 1)
    elif isinstance(value, dict) and _depth < _DEPTH:
        for key, each in value.items():
            if type(key) is not str:
                raise InvalidValue(field, key, _PLAIN)
            plain(field, key, _depth + 1)
            plain(f"{field}[{key!r}]", each, _depth + 1)
    elif not (
        (type(value) is int and -(2**63) <= value < 2**63)
        or (type(value) is float and math.isfinite(value))
        or (type(value) is str and is_unicode(value))
    ):
        raise InvalidValue(field, value, _PLAIN)
    return value


def checked_size(field: str, value: Any) -> Any:
    """Return `value` if it is plain data of a bounded size. Raises InvalidValue."""
    size = len(msgspec.json.encode(plain(field, value)))
    if size > MAX_DATA:
        raise InvalidValue(field, f"{size} bytes of JSON", f"at most {MAX_DATA}: keep large data in a file")
    return value


def checked_policy(policy: object) -> Policy | None:
    """Return a policy that may be stored. Raises InvalidValue for a policy with values: a schedule stores no values."""
    if policy is None:
        return None
    if not isinstance(policy, Policy):
        raise InvalidValue("policy", policy, "ramet.Policy")
    if policy.secrets:
        raise InvalidValue("policy.secrets", sorted(policy.secrets), "none: a schedule does not store secrets")
    if policy.env_vars:
        accepted = "none: a schedule does not store values; allowed_env_vars takes them from the kernel's environment"
        raise InvalidValue("policy.env_vars", sorted(policy.env_vars), accepted)
    return policy


def _fields_of(agent: Agent) -> dict[str, Any]:
    """Return a definition as plain data."""
    _check_model(agent)
    fields: dict[str, Any] = {}
    for each in dataclasses.fields(Agent):
        value = getattr(agent, each.name)
        default = each.default_factory() if callable(each.default_factory) else each.default
        if value == default or each.name in _BY_VALUE:
            continue
        if isinstance(value, External):
            value = value.as_data()
        if each.name in ("tools", "disallowed_tools", "skills"):
            value = list(value)
        elif each.name in ("output", "hooks") and isinstance(value, Mapping):
            value = dict(value)
        fields[each.name] = checked_size(f"agent.{each.name}", value)
    if agent.policy is not None:
        policy = checked_policy(agent.policy)
        fields["policy"] = msgspec.to_builtins(policy)
    if agent.limits != Limits():
        fields["limits"] = msgspec.to_builtins(agent.limits)
    if agent.permissions:
        fields["permissions"] = msgspec.to_builtins(agent.permissions)
    if agent.source is not None:
        fields["source"] = str(agent.source)
    if agent.function is not None and agent.external is None:
        fields["function"] = reference_of(agent.function, field="agent.function")
    return fields


def _agent_of(fields: Mapping[str, Any]) -> Agent:
    values = dict(fields)
    if "policy" in values:
        values["policy"] = policies.from_json(values["policy"])
    if "limits" in values:
        values["limits"] = Limits(**values["limits"])
    if "permissions" in values:
        values["permissions"] = msgspec.convert(values["permissions"], Permissions)
    if "source" in values:
        values["source"] = pathlib.Path(values["source"])
    if "function" in values:
        values["function"] = resolve(values["function"])
    return Agent(**values)


def _check_model(agent: Agent) -> None:
    if agent.function is None and not isinstance(agent.model, str):
        accepted = (
            "a string such as 'anthropic:claude-sonnet-5-5': "
            "a scheduled agent has no parent, and objects cannot be stored"
        )
        raise InvalidValue("agent.model", agent.model, accepted)
