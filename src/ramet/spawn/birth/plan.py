"""The plan of a spawn: everything that can be decided, and refused, before any resource is taken."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, SystemMessage

from ramet.agent.builtin import is_builtin_without_tools
from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent, as_agent
from ramet.agent.external.program_policy import Program
from ramet.agent.loop import MAX_TURNS
from ramet.agent.toolset import Toolset, resolve_tools
from ramet.core.errors import InvalidValue, SpawnRefused, Unknown
from ramet.core.ids import ROOT_NAME, safe_name
from ramet.core.limits import NO_LIMITS, RESOURCES, Limits, SpawnLimits
from ramet.core.liveness.watch_settings import NO_WATCH, Watch
from ramet.core.policy.decision import PolicyDecision
from ramet.core.policy.policy import Grant, Policy, resolve_root_policy
from ramet.core.policy.rights import uncovered_endpoints
from ramet.isolation.git.clone import Clone
from ramet.isolation.linux.beneath import open_without_links
from ramet.isolation.mounts import source_below
from ramet.spawn.admission import NO_SHARE, ResourceShare
from ramet.spawn.grants import (
    Clamp,
    cap_time,
    capsule_of,
    check_endpoints,
    check_may_spawn,
    child_grant,
    composition_grant,
    narrowed_to,
    program_of,
    with_definition_mounts,
)
from ramet.spawn.mcp.server_grants import naming_server, server_grant
from ramet.spawn.mcp.tool_list import without_server_tools
from ramet.spawn.ports import TreePorts
from ramet.spawn.run import Run
from ramet.tools.agents.peers import peer_tools
from ramet.tools.skills.skill_tool import skill_folders
from ramet.tools.spawn_request import SpawnRequest, check_request
from ramet.wire.code.capsule import PackedCall

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

GENERAL = "general-purpose"
ISOLATIONS = (None, "inline", "worktree")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A spawn that passed every check that does not depend on room."""

    request: SpawnRequest
    agent: Agent
    is_fork: bool = False
    name: str
    limits: Limits
    clamps: tuple[Clamp, ...] = ()
    toolset: Toolset
    system: tuple[BaseMessage, ...]
    cwd: pathlib.Path
    watch: Watch = NO_WATCH
    isolation: str | None = None
    clone: Clone | None = None  #: that a sandboxed run with a copy of a repository works in
    grant: Grant | None = None
    step_ceiling: Grant | None = None
    policy_ceiling: Policy | None = None
    decision: PolicyDecision | None = None  #: of a root: the adapter's, if there is an adapter
    capsule: PackedCall | None = None
    definition_mounts: tuple[str, ...] = ()  #: folders of its skills and MCP servers, beyond its policy

    @property
    def needs_clone(self) -> bool:
        """Return whether the run is to work in its sandbox in its own copy of a repository."""
        return self.isolation == "worktree" and self.grant is not None

    @property
    def share(self) -> ResourceShare:
        """The part of its parent's capacity that the run uses while it lives."""
        return ResourceShare(self.grant.memory_mb, self.grant.cpu_cores) if self.grant is not None else NO_SHARE


def plan_birth(
    parent: Run,
    request: SpawnRequest,
    services: TreePorts,
    limits: SpawnLimits,
    *,
    decided: tuple[Plan, Policy | None] | None = None,
) -> Plan:
    """Narrow a request to what `parent` may give; nothing is granted yet.

    `decided` is the plan that a policy adapter was asked about, whose agent is to be spawned, and the most that the
    adapter allowed.

    Raises SpawnRefused at the depth limit and for a right that the parent lacks. Raises Unknown for a missing type,
    model or skill, InvalidValue for an impossible request. Raises NoToolsLeft if the tools resolve to nothing,
    NotShippable for a function that cannot be transferred into its sandbox.
    """
    check_request(request)
    if parent.grant is not None:
        check_may_spawn(parent, parent.grant)
    if parent.info.depth >= limits.depth:
        raise SpawnRefused(
            "depth", f"agents may be nested at most {limits.depth} levels deep; do this yourself", free=0
        )
    if decided is None:
        (agent, is_fork), ceiling = _definition(parent, request, services), None
    else:
        agent, is_fork, ceiling = decided[0].agent, decided[0].is_fork, decided[1]
    isolation = request.isolation or agent.isolation
    if isolation not in ISOLATIONS:
        raise InvalidValue("isolation", isolation, "inline or worktree")
    narrowed_limits, clamps = _narrow(parent, agent.limits, request.limits, detached=request.detached)
    program = program_of(agent, request.model, services.programs)
    grant, policy_clamps = child_grant(parent, agent, request, services, program)
    if isolation == "worktree" and parent.grant is not None and parent.sandbox.clone is None:
        accepted = "nothing: you work in a sandbox, and in no clone of a repository that it could copy"
        raise InvalidValue("isolation", isolation, accepted)
    cwd = _working_dir(parent, request)
    if is_fork:
        toolset = Toolset(parent.context.tools, delegable=parent.rights[-1].delegable)
        system = parent.context.system_messages
    else:
        may_spawn = parent.info.depth + 1 < limits.depth
        own_tools = own_tools_of(agent, cwd, parent, services)
        available = without_server_tools(parent.inheritable_tools)
        toolset = resolve_tools(agent, available, may_spawn=may_spawn, is_child=True, own=own_tools)
        system = system_messages(agent, cwd, services)
    if request.model not in (None, "inherit"):
        agent = agent.replace(model=request.model)
    if agent.model is not None and agent.function is None:
        services.model(agent.model)
    check_prompt(agent, request.prompt, is_fork=is_fork)
    plan = Plan(
        request=request,
        agent=agent,
        is_fork=is_fork,
        name=safe_name(request.name) if request.name else "",
        limits=narrowed_limits,
        clamps=(*clamps, *policy_clamps),
        toolset=toolset,
        system=system,
        cwd=cwd,
        watch=request.watch.over(agent.watch).over(parent.watch),
        isolation=isolation,
        grant=grant,
        policy_ceiling=ceiling,
    )
    return _with_rights(plan, parent, services, program)


def plan_root(
    agent: Agent,
    request: SpawnRequest,
    limits: Limits,
    services: TreePorts,
    *,
    tools: Sequence[BaseTool],
    cwd: pathlib.Path,
    may_spawn: bool,
    isolation: str | None = None,
    ceiling: Policy | None = None,
    decision: PolicyDecision | None = None,
) -> Plan:
    """Return the plan of a root; `ceiling` is the most that a policy adapter allowed in its `decision`.

    Raises InvalidValue for an impossible request, NoToolsLeft if the tools resolve to nothing.
    """
    composed = isinstance(agent.function, Composition)
    program = program_of(agent, request.model, services.programs)
    policy = request.policy if program is None else program.policy(request.policy or agent.policy)
    plan = Plan(
        request=request,
        agent=agent,
        name=ROOT_NAME,
        limits=limits.tighten(request.limits),
        toolset=resolve_tools(agent, tools, may_spawn=may_spawn, is_child=False, own=services.own_tools(agent, cwd)),
        system=system_messages(agent, cwd, services),
        cwd=cwd,
        watch=request.watch.over(agent.watch).over(services.watch),
        isolation=isolation,
        grant=resolve_root_policy(policy) if policy is not None and not composed else None,
        policy_ceiling=ceiling,
        decision=decision,
    )
    plan = _with_rights(plan, None, services, program)
    bounded = agent.replace(limits=plan.limits, max_turns=agent.max_turns or MAX_TURNS)
    return dataclasses.replace(plan, agent=bounded)


def _with_rights(plan: Plan, parent: Run | None, services: TreePorts, program: Program | None) -> Plan:
    """Return the plan with its grants within its ceiling, its time within its grants, and its packed function."""
    agent, request, grant = plan.agent, plan.request, plan.grant
    step_ceiling = composition_grant(parent, agent, request)
    if plan.policy_ceiling is not None:
        grant = narrowed_to(plan.policy_ceiling, grant, parent, services)
        step_ceiling = narrowed_to(plan.policy_ceiling, step_ceiling, parent, services)
    if program is not None and grant is not None:
        program.check(grant)
        grant = program.with_mounts(grant)
    check_servers(agent, grant, services)
    folders = (*skill_folders(plan.toolset.tools), *_package_folders(agent, services))
    grant, definition_mounts = with_definition_mounts(grant, folders, plan.policy_ceiling)
    check_tools(plan.toolset.tools, (grant or step_ceiling) is not None, services)
    return dataclasses.replace(
        plan,
        grant=grant,
        definition_mounts=definition_mounts,
        step_ceiling=step_ceiling,
        limits=cap_time(grant or step_ceiling, plan.limits),
        capsule=capsule_of(agent, request, grant, services, program),
    )


def own_tools_of(agent: Agent, cwd: pathlib.Path, parent: Run | None, services: TreePorts) -> Sequence[BaseTool]:
    """Return the tools that a definition brings, and those of a peer if the parent leads its children as peers."""
    own = services.own_tools(agent, cwd)
    if parent is None or not parent.agent.peers or agent.function is not None:
        return own
    return tuple({tool.name: tool for tool in (*own, *peer_tools())}.values())


def check_prompt(agent: Agent, prompt: str, *, is_fork: bool = False) -> None:
    """Raise InvalidValue if an agent with a model would be spawned without a task."""
    if agent.takes_prompt and not prompt.strip() and (is_fork or not agent.initial_prompt):
        raise InvalidValue("prompt", prompt, "text: what the agent is to do")


def spawnable(parent: Run, services: TreePorts) -> Mapping[str, str]:
    """Return the types that `parent` may spawn, with their descriptions."""
    return {
        name: agent.description for name, agent in sorted(services.definitions.items()) if parent.may_spawn_type(name)
    }


def types_to_offer(parent: Run, tools: Sequence[BaseTool], services: TreePorts) -> Mapping[str, str]:
    """Return the types to offer a run with `tools`: those it may spawn, except built-in ones that would have no tool.

    A definition of the user's own stays: its error tells the user what is missing.
    """
    delegable = parent.rights[-1].delegable
    names = {each.name for each in (tools if delegable is None else delegable)}
    return {
        name: description
        for name, description in spawnable(parent, services).items()
        if not is_builtin_without_tools(services.definitions[name], names)
    }


def check_tools(tools: Sequence[BaseTool], is_inside: bool, services: TreePorts) -> None:
    """Raise NotShippable for a synchronous tool that must run in a process of its own, and cannot.

    In a sandbox the whole agent can be terminated together with its tools.
    """
    if services.processes is not None and not is_inside:
        services.processes.check(tools)


def check_servers(agent: Agent, grant: Grant | None, services: TreePorts) -> None:
    """Raise InvalidValue if an agent has MCP servers and no right to them, and MissingExtra without their client.

    Raises SpawnRefused if the policy of a server asks for a right that the agent lacks.
    """
    if not agent.mcp:
        return
    names = ", ".join(each.name for each in agent.mcp_servers)
    if grant is None:
        accepted = (
            "none for an agent that works in the host, as one without a policy and the root of a session do: a server "
            "runs in the sandbox of its agent, or at an address that its policy lists"
        )
        raise InvalidValue("mcp", names, accepted)
    if services.mcp_client is None:
        raise InvalidValue("mcp", names, "none here: this tree has no client for MCP servers")
    for server in agent.mcp_servers:
        if server.url and uncovered_endpoints(grant.allowed_endpoints, [server.endpoint]):
            accepted = f"an address within policy.allowed_endpoints: {server.endpoint!r} is not among them"
            raise InvalidValue(f"mcp.{server.name}.url", server.url, accepted)
        if server.url and server.shared:  # Its connection has the right to this address alone, as if it were listed.
            check_endpoints([server.endpoint], grant.allowed_endpoints, services)
    services.mcp_client.check()
    for each in agent.mcp_servers:
        if each.policy is not None:
            own_grant = server_grant(each, grant)
            if each.policy.allowed_endpoints and services.placement is not None:
                with naming_server(each):
                    check_endpoints(own_grant.allowed_endpoints, grant.allowed_endpoints, services)


def _package_folders(agent: Agent, services: TreePorts) -> tuple[str, ...]:
    """Return the folders of the packages of an agent's MCP servers. Raises InvalidValue for one not installed."""
    return services.mcp_packages.mounts(agent.mcp_servers) if agent.mcp and services.mcp_packages is not None else ()


def folder_text(folder: str, *, has_mounts: bool = False) -> str:
    """Return what a prompt says of the folder that an agent works in."""
    outside = "outside it you reach only what is mounted" if has_mounts else "nothing outside can be reached"
    return f"You work in {folder}. Paths are relative to it; {outside}."


def system_messages(
    agent: Agent, cwd: pathlib.Path, services: TreePorts, *, folder: str = ""
) -> tuple[BaseMessage, ...]:
    """Return the system messages of a fresh agent.

    `folder` says where it works, if that is not `cwd`: see `folder_text`.
    """
    text = services.instructions(agent, cwd, folder or folder_text(f"the folder {cwd}"))
    return (SystemMessage(content=text),) if text else ()


def _narrow(parent: Run, own_limits: Limits, requested: Limits, *, detached: bool) -> tuple[Limits, tuple[Clamp, ...]]:
    """Return the tighter of definition and request; a limit above the parent's is clamped to it and reported.

    A limit equal to the parent's reserves nothing: the child draws on the scope above, as its parent does.
    """
    values: dict[str, Any] = {}
    clamps: list[Clamp] = []
    limits = own_limits.tighten(requested)
    for name, value in limits.as_data().items():
        if name == "at_limit":
            values[name] = value
            continue
        is_counted = name in RESOURCES
        ceiling = (
            parent.context.budget.limit(name) if is_counted else math.inf if detached else parent.seconds_at_most()
        )
        if value > ceiling:
            clamps.append(Clamp(f"limits.{name}", value, ceiling))
            value = type(value)(ceiling) if is_counted else ceiling
        if is_counted and value >= ceiling and not detached:
            continue
        values[name] = value
    return Limits(**values), tuple(clamps)


def _definition(parent: Run, request: SpawnRequest, services: TreePorts) -> tuple[Agent, bool]:
    """Return the agent to spawn, and whether it is a fork of the parent."""
    mode, requested_type = request.mode, request.subagent_type
    if request.agent is not None:
        if mode == "fork":
            raise InvalidValue("mode", mode, "'fresh' with a definition: a fork is the parent itself")
        return as_agent(request.agent), False
    # A fork of a coordinator could not do the work either.
    if requested_type is None and mode is None and (services.omitted_type != "fork" or parent.agent.coordinator):
        requested_type = GENERAL
    if requested_type is None and mode != "fresh":
        if parent.agent.function is not None:
            raise InvalidValue("subagent_type", None, "a type: a function has no conversation to fork")
        return parent.agent.replace(limits=NO_LIMITS, isolation=None, background=False, output=None), True
    if mode == "fork":
        raise InvalidValue("mode", mode, "no subagent_type: a fork is the parent itself")
    known = spawnable(parent, services)
    name = requested_type or GENERAL
    if name not in known:
        raise Unknown("agent type", name, tuple(known))
    return services.definitions[name], False


def _working_dir(parent: Run, request: SpawnRequest) -> pathlib.Path:
    if request.cwd is None:
        return parent.context.cwd
    if "\0" in request.cwd or len(request.cwd) > 4096:
        raise InvalidValue("cwd", request.cwd, "a folder's path")
    if parent.grant is not None:  # A path of a guest: inside, the folder exists or the start fails.
        return _path_without_links(parent, _path_inside(parent.context.cwd, request.cwd), request.cwd)
    cwd = (parent.context.cwd / request.cwd).resolve()
    if not cwd.is_relative_to(parent.context.cwd.resolve()) or not cwd.is_dir():
        raise InvalidValue("cwd", request.cwd, "a folder below the parent's own")
    return cwd


def _path_without_links(parent: Run, cwd: pathlib.Path, requested: str) -> pathlib.Path:
    """Return the folder unchanged.

    Raises InvalidValue if a link in a mount leads to it: the host reads instructions there.
    """
    source = source_below(str(cwd), parent.sandbox.mount_roots)
    try:
        if source is not None:
            os.close(open_without_links(source))
    except OSError as error:
        if error.errno == errno.ELOOP:
            expected = "a folder below the parent's own: it leads through a symbolic link"
            raise InvalidValue("cwd", requested, expected) from error
    return cwd


def _path_inside(root: pathlib.Path, requested: str) -> pathlib.Path:
    parts = (
        pathlib.PurePosixPath(requested).relative_to(root).parts
        if requested.startswith(f"{root}/")
        else requested.split("/")
    )
    if (requested.startswith("/") and not requested.startswith(f"{root}/")) or ".." in parts or "~" in parts[:1]:
        raise InvalidValue("cwd", requested, "a folder below the parent's own")
    return root.joinpath(*parts)
