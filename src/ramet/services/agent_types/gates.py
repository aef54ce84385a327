"""The safety gate of an agent: a policy of the server's store, selected by name."""

from __future__ import annotations

import logging

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name
from ramet.host.runtime import AgentRuntime
from ramet.host.safety.gate import SafetyGate
from ramet.host.safety.policies import SafetyPolicies

_log = logging.getLogger("ramet.services")


async def gate_of(runtime: AgentRuntime, name: str) -> SafetyGate | None:
    """Return a gate that reads the named policy again for each tool call; None for an empty name.

    Raises InvalidValue for an invalid name, and for a policy that cannot be read (the reason is only logged). Raises
    Unknown if the policy does not exist, and any error of the store.
    """
    if not name:
        return None
    checked_name("spawn_info.gate", name)
    policies = SafetyPolicies(await runtime.open_store())
    try:
        await policies.get(name)
    except InvalidValue as problem:
        _log.error("safety policy %r cannot be read: %s", name, problem)
        raise InvalidValue("spawn_info.gate", name, "a safety policy that this server can read") from None
    return SafetyGate(policies.policy(name))
