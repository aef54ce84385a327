"""The plan of a root: decided, and refused, before any resource is taken."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent
from ramet.agent.toolset import resolve_tools
from ramet.core.budget import Limits
from ramet.core.ids import ROOT_NAME
from ramet.core.policy.policy import Policy, resolve_root_policy
from ramet.spawn.birth.plan import Plan, check_tools, system_messages
from ramet.spawn.grants import cap_time, capsule_of, composition_grant, narrowed_to
from ramet.spawn.ports import TreePorts
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


def plan_root(
    agent: Agent,
    request: SpawnRequest,
    limits: Limits,
    ceiling: Policy | None,
    services: TreePorts,
    *,
    tools: Sequence[BaseTool],
    cwd: pathlib.Path,
    may_spawn: bool,
) -> Plan:
    """Return the plan of a root; `ceiling` is the most that a policy adapter allowed.

    Raises InvalidValue for an impossible request, NoToolsLeft if the tools resolve to nothing.
    """
    toolset = resolve_tools(agent, tools, may_spawn=may_spawn, is_child=False, own=services.own_tools(agent, cwd))
    check_tools(toolset.tools, request.policy is not None, services)
    step_ceiling = composition_grant(None, agent, request)
    composed = isinstance(agent.function, Composition)
    grant = resolve_root_policy(request.policy) if request.policy is not None and not composed else None
    if ceiling is not None:
        grant = narrowed_to(ceiling, grant, None, services)
        step_ceiling = narrowed_to(ceiling, step_ceiling, None, services)
    limits = cap_time(grant or step_ceiling, limits)
    agent = agent.replace(limits=limits)
    return Plan(
        request=request,
        agent=agent,
        name=ROOT_NAME,
        limits=limits,
        grant=grant,
        step_ceiling=step_ceiling,
        policy_ceiling=ceiling,
        capsule=capsule_of(agent, request, grant),
        toolset=toolset,
        system=system_messages(agent, cwd, services),
        cwd=cwd,
    )
