"""Decorators that turn a function into a definition, or change one. Their order has no effect.

A value that is stated twice is refused, with both decorators' names: the winner would depend on the order.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, overload

from ramet.agent.definition import Agent, changed_policy, resource_fields
from ramet.core.errors import InvalidValue
from ramet.core.ids import safe_name
from ramet.core.limits import Limits
from ramet.core.policy.policy import Policy

#: The objects that can be decorated.
Target = Agent | Callable[..., Any]
Decorator = Callable[[Target], Agent]
#: The attribute with the arguments of `@agent`; set on the object, so that `replace` and `with_…` drop it.
_SAID = "_said_by_agent"
_FIELDS = frozenset(each.name for each in dataclasses.fields(Agent)) - {"function", "scope", "source"}


@overload
def agent(function: Callable[..., Any], /) -> Agent: ...
@overload
def agent(function: None = None, /, **fields: Any) -> Decorator: ...
def agent(function: Callable[..., Any] | None = None, /, **fields: Any) -> Agent | Decorator:
    """Turn a function into an agent: `@agent`, or `@agent(name=…, …)` with the fields of `ramet.Agent`.

    The default name is the function's name, and the default description the first line of its docstring.
    """
    for name in fields:
        if name not in _FIELDS:
            raise InvalidValue("agent field", name, ", ".join(sorted(_FIELDS)))

    def decorate(target: Target) -> Agent:
        definition = _definition(target)
        earlier_fields = getattr(definition, _SAID, None)
        if earlier_fields is not None:
            raise InvalidValue(
                "agent", fields, f"one @agent for {definition.name!r}; another one has {earlier_fields!r}"
            )
        for name in ("policy", "limits", "cache_ttl_seconds"):
            if fields.get(name) is not None:
                definition = _STATED_ONCE[name](definition, fields[name])
        other_fields = {name: value for name, value in fields.items() if name not in _STATED_ONCE}
        new_definition = definition.replace(**other_fields)
        object.__setattr__(new_definition, _SAID, dict(fields))
        return new_definition

    return decorate if function is None else decorate(function)


def policy(policy: Policy | None = None, /, **fields: Any) -> Decorator:
    """Set what the agent's sandbox may do: a `Policy`, or some fields of one.

    With a policy the agent runs in a sandbox. Raises InvalidValue.
    """
    if policy is not None and not isinstance(policy, Policy):
        raise InvalidValue("policy", policy, "ramet.Policy, or its fields by name")
    requested = changed_policy(policy, **fields)
    if requested is None:
        raise InvalidValue("policy", policy, "ramet.Policy, or its fields by name")
    return lambda target: _with_policy(_definition(target), requested)


def resources(*, cpu: float | None = None, **fields: Any) -> Decorator:
    """Set what the agent's sandbox may use: `cpu`, `memory_mb`, `pids`, sizes.

    Any of them makes it run in a sandbox. Raises InvalidValue.
    """
    requested = changed_policy(None, **resource_fields(cpu, fields))
    if requested is None:
        raise InvalidValue("resources", None, "cpu=, memory_mb= or another resource of a policy")
    return lambda target: _with_policy(_definition(target), requested)


def timeout(seconds: float) -> Decorator:
    """Set how long a run of the agent may take, in a sandbox or in the host. Raises InvalidValue."""
    if seconds is None:
        raise InvalidValue("timeout", seconds, "a number of seconds")
    requested = Limits(seconds=seconds)
    return lambda target: _with_limits(_definition(target), requested)


def retry(count: int, *, delay_seconds: float | None = None) -> Decorator:
    """Set how often the agent is retried after a failed attempt, each time in a clean sandbox.

    `delay_seconds` between attempts is 1.0 if it is absent. Raises InvalidValue.
    """
    requested = Policy(retry_count=count, retry_delay_seconds=delay_seconds)
    if requested.retry_count is None:
        raise InvalidValue("retry", count, "a whole number")
    return lambda target: _with_policy(_definition(target), requested)


def cache(*, ttl_seconds: float) -> Decorator:
    """Set how long a result of the agent is reused for calls with the same inputs. Raises InvalidValue."""
    Agent(name="checked", cache_ttl_seconds=ttl_seconds)
    if ttl_seconds is None:
        raise InvalidValue("cache", ttl_seconds, "ttl_seconds above 0")
    return lambda target: _with_cache(_definition(target), ttl_seconds)


def _definition(target: Target) -> Agent:
    if isinstance(target, Agent):
        return target
    if not callable(target):
        raise InvalidValue("agent", target, "a function, or the definition that another decorator made of one")
    name = safe_name(getattr(target, "__name__", "function"), "function")
    summary = (inspect.getdoc(target) or "").partition("\n")[0] if inspect.isroutine(target) else ""
    return Agent(name=name, description=summary, function=target)


def _with_policy(definition: Agent, requested: Policy) -> Agent:
    new = {name: value for name in Policy.__struct_fields__ if (value := getattr(requested, name)) is not None}
    for name, value in new.items():
        current = getattr(definition.policy, name, None)
        if current is not None:
            raise _duplicate_error(f"policy.{name}", value, f"policy.{name}", current)
    if "timeout_seconds" in new and definition.limits.seconds is not None:
        raise _duplicate_error("policy.timeout_seconds", new["timeout_seconds"], "timeout", definition.limits.seconds)
    return _changed_copy(definition, policy=changed_policy(definition.policy, **new))


def _with_limits(definition: Agent, requested: Limits) -> Agent:
    if not isinstance(requested, Limits):
        raise InvalidValue("limits", requested, "ramet.Limits")
    new = {name: value for name, value in dataclasses.asdict(requested).items() if value is not None}
    for name, value in new.items():
        current = getattr(definition.limits, name)
        if current is not None:
            raise _duplicate_error(_limit_field(name), value, _limit_field(name), current)
    policy_timeout = getattr(definition.policy, "timeout_seconds", None)
    if "seconds" in new and policy_timeout is not None:
        raise _duplicate_error("timeout", new["seconds"], "policy.timeout_seconds", policy_timeout)
    return _changed_copy(definition, limits=dataclasses.replace(definition.limits, **new))


def _with_cache(definition: Agent, ttl_seconds: float) -> Agent:
    if definition.cache_ttl_seconds is not None:
        raise _duplicate_error("cache", ttl_seconds, "cache", definition.cache_ttl_seconds)
    return _changed_copy(definition, cache_ttl_seconds=ttl_seconds)


_STATED_ONCE: Mapping[str, Callable[[Agent, Any], Agent]] = {
    "policy": _with_policy,
    "limits": _with_limits,
    "cache_ttl_seconds": _with_cache,
}


def _changed_copy(definition: Agent, **changes: Any) -> Agent:
    new_definition = definition.replace(**changes)
    stated_fields = getattr(definition, _SAID, None)
    if stated_fields is not None:
        object.__setattr__(new_definition, _SAID, stated_fields)
    return new_definition


def _limit_field(name: str) -> str:
    return "timeout" if name == "seconds" else f"limits.{name}"


def _duplicate_error(field: str, value: object, other_field: str, other_value: object) -> InvalidValue:
    return InvalidValue(
        field, value, f"a value that is stated once; another decorator states {other_field}={other_value!r}"
    )
