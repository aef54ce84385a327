"""The place where an agent works: in a sandbox with the contents of its image, or in the host without them."""

from __future__ import annotations

import os

import msgspec

from ramet.core.errors import InvalidValue
from ramet.core.policy.policy import Grant, Isolation, Policy, resolve_root_policy
from ramet.core.policy.rights import IMPORTS
from ramet.host.runtime import AgentRuntime
from ramet.services.contract import AgentSpec

#: The value of `RunningAgent.isolation` for an agent that works in the host.
IN_THE_HOST = "none"


def policy_of(spec: AgentSpec, *, may_spawn: bool = False) -> Policy | None:
    """Return the requested policy, extended by what the image and the environment need; None for the host.

    Raises InvalidValue if an environment or code of an image is requested for the host. Raises InvalidValue if
    `may_spawn` is set and the policy denies sub-agents.
    """
    policy, image = spec.policy, spec.image
    code = (*image.folders, *image.packages)
    if policy is None:
        if spec.env:
            raise InvalidValue("env", sorted(spec.env), "none for an agent that works in the host: set a policy")
        if code:
            raise InvalidValue("image", image.id, "none with code for an agent that works in the host: set a policy")
        return None
    if may_spawn and policy.allow_sub_agents is False:
        raise InvalidValue("policy.allow_sub_agents", False, "true, or nothing, where spawn_info.spawn is true")
    env = {**(policy.env_vars or {}), **spec.env}
    if code:
        env[IMPORTS] = os.pathsep.join(str(each.resolve()) for each in code)
    mounted = [str(each.resolve()) for each in (*code, *image.skills)]
    return msgspec.structs.replace(
        policy,
        readonly_mounts=tuple(dict.fromkeys((*(policy.readonly_mounts or ()), *mounted))),
        env_vars=env,
        allow_sub_agents=True if may_spawn else policy.allow_sub_agents,
    )


async def isolation_of(runtime: AgentRuntime, policy: Policy | None) -> str:
    """Return the isolation level of an agent with this policy.

    Raises IsolationUnavailable, and InvalidValue for a policy that a root cannot have.
    """
    if policy is None:
        return IN_THE_HOST
    grant: Grant = resolve_root_policy(policy)
    backend = await runtime.sandboxes.placement().backend(grant)
    offered = (await backend.probe()).level
    return str(Isolation.FRESH if grant.isolation is Isolation.FRESH else offered)
