"""The grant of a new run's sandbox and its packed function, decided before any resource is taken."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec import structs

from ramet.agent.adopted.mark import AdoptedFunction
from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.agent.external.external import ExternalFunction
from ramet.agent.external.program_policy import Program, Programs
from ramet.core.errors import Bug, InvalidValue, SpawnRefused
from ramet.core.limits import Limits
from ramet.core.policy import rights
from ramet.core.policy.decision import clamp_grant
from ramet.core.policy.mount_rights import Mounts
from ramet.core.policy.policy import Grant, Policy, narrow, resolve_root_policy
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run
from ramet.tools.spawn_request import SpawnRequest
from ramet.wire.code.capsule import PackedCall, pack


class Clamp(NamedTuple):
    """A limit that was requested above the parent's, by its full name."""

    name: str
    requested: float
    granted: float


def program_of(agent: Agent, model: str | None, programs: Programs | None) -> Program | None:
    """Return the program of an agent, with another model if one is given; None for any other agent.

    Raises InvalidValue.
    """
    if not isinstance(agent.function, ExternalFunction):
        return None
    if programs is None:
        raise InvalidValue("external", agent.name, "none here: this tree starts no programs of other makers")
    own_model = agent.model if isinstance(agent.model, str) else None
    return programs.find(agent.function.external, own_model if model in (None, "inherit") else model)


def check_may_spawn(parent: Run, grant: Grant) -> None:
    """Check whether the parent's policy allows a spawn.

    Raises SpawnRefused if it does not.
    """
    if not grant.allow_sub_agents:
        raise SpawnRefused("policy.allow_sub_agents", "this agent may not start others", free=0)
    if grant.max_sub_agent_depth < 1:
        raise SpawnRefused("policy.max_sub_agent_depth", "no level below this agent is allowed", free=0)
    spawn_count = parent.admitted_spawns - (parent.turn.spawns_before if parent.persistent else 0)
    if spawn_count >= grant.max_sub_agents:
        span = "one turn" if parent.persistent else "its lifetime"
        reason = f"it may start at most {grant.max_sub_agents} in {span}"
        raise SpawnRefused("policy.max_sub_agents", reason, free=0)
    check_room_below(parent, coming=parent.admitted_spawns - parent.spawn_count)


def check_room_below(parent: Run, *, coming: int = 0) -> None:
    """Check whether a conversation may have one more living child; `coming` children are being spawned.

    Raises SpawnRefused if it may not. Any other run never has more children in its lifetime than may live concurrently.
    """
    grant = parent.grant
    if parent.persistent and grant is not None and len(parent.children) + coming >= grant.max_sub_agents:
        reason = f"at most {grant.max_sub_agents} may run at once; wait until one has ended"
        raise SpawnRefused("policy.max_sub_agents", reason, free=0)


def child_grant(
    parent: Run, agent: Agent, request: SpawnRequest, services: TreePorts, program: Program | None = None
) -> tuple[Grant | None, tuple[Clamp, ...]]:
    """Return the grant of a new run's sandbox, or None if the run works in the host.

    Raises SpawnRefused if the policy requests a right that no run above has, or if a program would lack what it needs.
    """
    policy = request.policy or agent.policy
    if program is not None:
        if policy is None and parent.grant is None and services.placement is not None:
            policy = services.placement.children
        policy = program.policy(policy)
    if isinstance(agent.function, Composition):
        if parent.grant is not None:
            raise SpawnRefused(
                "composition", "it works in the host, and you work in a sandbox; start its steps yourself", free=0
            )
        return None, ()
    parent_grant = parent.grant or parent.step_ceiling
    if parent_grant is not None:
        remaining_s = parent.seconds_left(services.clock.monotonic())
        grant, clamps = narrow(parent_grant, policy or Policy(), seconds_left=remaining_s)
        if policy is not None and (policy.readonly_mounts or policy.writable_mounts):
            _check_mounts(grant.mounts, parent.sandbox.mount_roots, services)
        if policy is not None and policy.allowed_endpoints:
            check_endpoints(grant.allowed_endpoints, parent_grant.allowed_endpoints, services)
        return grant, tuple(Clamp(f"policy.{each.field}", each.requested, each.granted) for each in clamps)
    if policy is None and services.placement is not None:
        policy = services.placement.children
    if policy is None:
        return None, ()
    if services.placement is None:
        raise InvalidValue("policy", type(policy).__name__, "none here: this tree has no sandboxes")
    return resolve_root_policy(policy), ()


def narrowed_to(most: Policy, grant: Grant | None, parent: Run | None, services: TreePorts) -> Grant | None:
    """Return the grant narrowed to at most this policy.

    Raises SpawnRefused if the grant covers an entry by name only.
    """
    if grant is None:
        return None
    narrowed_grant = clamp_grant(grant, most)
    if most.readonly_mounts or most.writable_mounts:
        roots = mount_roots_of(parent, grant, services)
        _check_mounts(narrowed_grant.mounts, roots, services)
    if most.allowed_endpoints:
        check_endpoints(narrowed_grant.allowed_endpoints, grant.allowed_endpoints, services)
    return narrowed_grant


def with_definition_mounts(
    grant: Grant | None, folders: Sequence[str], most: Policy | None
) -> tuple[Grant | None, tuple[str, ...]]:
    """Return the grant with read-only mounts of folders of a run's definition, and the folders that were added.

    They are the folders of its skills, and of the packages of its MCP servers. What `most` does not cover is not
    added: the Skill tool then says that the folder is not mounted, and a server does not start.
    """
    if grant is None:
        return None, ()
    added = rights.uncovered_mounts(grant.mounts.paths, tuple(dict.fromkeys(folders)))
    if most is not None and (most.readonly_mounts is not None or most.writable_mounts is not None):
        allowed = (*(most.readonly_mounts or ()), *(most.writable_mounts or ()))
        uncovered = rights.uncovered_mounts(allowed, added)
        added = [each for each in added if each not in uncovered]
    return structs.replace(grant, readonly_mounts=(*grant.readonly_mounts, *added)), tuple(added)


def mount_roots_of(
    parent: Run | None, grant: Grant | None, services: TreePorts, agent: Agent | None = None
) -> Mapping[str, str]:
    """Return the mounts that the operator granted to a new run or above it, and their targets at that time."""
    if parent is not None and (parent.grant is not None or parent.step_ceiling is not None):
        roots = parent.sandbox.mount_roots
        if grant is None or agent is None or not isinstance(agent.function, ExternalFunction):
            return roots
        assert services.placement is not None, "a run with a grant has a placement"
        of_program = rights.uncovered_mounts(tuple(roots), grant.readonly_mounts)
        return {**roots, **services.placement.mount_roots(of_program)}
    if grant is None or not grant.mounts.paths or services.placement is None:
        return {}
    return services.placement.mount_roots(grant.mounts.paths)


def _check_mounts(mounts: Mounts, roots: Mapping[str, str], services: TreePorts) -> None:
    """Raise SpawnRefused if a mount lies below one of the roots by name only."""
    assert services.placement is not None, "a run with a grant has a placement"
    try:
        services.placement.check_mounts(mounts, roots)
    except InvalidValue as problem:
        raise SpawnRefused(f"policy.{problem.field}", f"{problem.value}: {problem.accepted}") from problem


def check_endpoints(endpoints: Sequence[str], parent_endpoints: Sequence[str], services: TreePorts) -> None:
    """Raise SpawnRefused for a public address of the host itself, which "*" of a parent does not cover."""
    assert services.placement is not None, "a run with a grant has a placement"
    try:
        services.placement.check_endpoints(endpoints, parent_endpoints)
    except InvalidValue as problem:
        raise SpawnRefused("policy.allowed_endpoints", f"{problem.value}: {problem.accepted}") from problem


def composition_grant(parent: Run | None, agent: Agent, request: SpawnRequest) -> Grant | None:
    """Return the maximum grant of a composition's steps: its policy, within the enclosing compositions' policies.

    Return None if the agent is not a composition, or if none of the compositions has a policy. Raises SpawnRefused as
    `child_grant` does.
    """
    if not isinstance(agent.function, Composition):
        return None
    policy, parent_ceiling = request.policy or agent.policy, parent.step_ceiling if parent is not None else None
    if policy is None:
        return parent_ceiling
    return narrow(parent_ceiling, policy)[0] if parent_ceiling is not None else resolve_root_policy(policy)


def cap_time(grant: Grant | None, limits: Limits) -> Limits:
    """Return the limits with their time capped to the grant's time."""
    if grant is None:
        return limits
    seconds = min(grant.timeout_seconds, math.inf if limits.seconds is None else limits.seconds)
    return dataclasses.replace(limits, seconds=seconds)


def capsule_of(
    agent: Agent, request: SpawnRequest, grant: Grant | None, services: TreePorts, program: Program | None = None
) -> PackedCall | None:
    """Return the packed function of a sandboxed agent.

    Raises NotShippable if it cannot be packed. Raises InvalidValue for an agent of another framework: its objects, keys
    included, belong to the host.
    """
    if program is not None and services.programs is not None:
        if request.args or request.kwargs:
            raise InvalidValue("args", agent.name, "none: a program of another maker gets a prompt")
        return pack(services.programs.run, (program.start_under(grant),))
    if grant is None or agent.function is None:
        return None
    if isinstance(agent.function, AdoptedFunction):
        raise InvalidValue("policy", f"one for {agent.name}", "none: an adopted agent works in the host")
    if isinstance(agent.function, PackedFunction):
        return agent.function.capsule
    secrets = tuple(grant.secrets.values())
    arguments = request.args
    if not arguments and not request.kwargs and request.prompt and accepts_single_arg(agent.function):
        arguments = (request.prompt,)
    return pack(agent.function, arguments, request.kwargs, secrets=secrets)


class PackedFunction:
    """A function that was received packed; only a sandbox unpacks and calls it."""

    def __init__(self, capsule: PackedCall) -> None:
        self.capsule = capsule
        self.__name__ = capsule.name

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise Bug("a packed function was called in the host")


def accepts_single_arg(function: Callable[..., Any]) -> bool:
    """Return whether a function can be called with a single argument."""
    try:
        inspect.signature(function).bind("")
    except (TypeError, ValueError):
        return False
    return True
