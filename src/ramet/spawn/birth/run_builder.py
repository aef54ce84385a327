"""Build the data of a run from its plan: context, rights, budget and tools."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

from ramet.agent.definition import Agent
from ramet.agent.hooks.config import gates_of
from ramet.agent.loop import MAX_TURNS
from ramet.concurrency.activity import RunActivity
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.mailbox import Mailbox
from ramet.concurrency.slots import Slot
from ramet.concurrency.timers import TimerQueue
from ramet.core.budget import Budget
from ramet.core.errors import InvalidValue
from ramet.core.lifecycle import Fact
from ramet.core.policy.permissions import Permissions
from ramet.core.policy.policy import Grant
from ramet.core.replay.run_replay import ROOM
from ramet.spawn.admission import AdmissionSlot
from ramet.spawn.birth.plan import Plan, types_to_offer
from ramet.spawn.grants import mount_roots_of
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.lifecycle.tree_pauses import is_halted, pause_reason
from ramet.spawn.limits.budget_note import budget_note
from ramet.spawn.limits.waits import LimitWaits
from ramet.spawn.ports import TreePorts
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run, RunSandbox
from ramet.spawn.watches.run_watch import Act, RunWatch
from ramet.tools.agents.agents import agent_tool
from ramet.tools.context import ToolUseContext, Tree
from ramet.tools.model_request import ModelRequest
from ramet.tools.run_info import RunInfo

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool


class RunBuilder:
    """The builder of one tree's runs."""

    def __init__(
        self,
        register: RunRegistry,
        supervisor: Supervisor,
        *,
        tree: Tree,
        watch_actions: Act,
        end_lost_monitors: Callable[[Run], None],
    ) -> None:
        self._register, self._supervisor, self._tree = register, supervisor, tree
        self._services, self._limit_waits = register.services, LimitWaits(register, supervisor)
        shared_timers = register.services.timers
        self._timers = shared_timers if shared_timers is not None else TimerQueue(register.services.clock)
        self._watch_actions, self._end_lost_monitors = watch_actions, end_lost_monitors

    def build(
        self,
        info: RunInfo,
        parent: Run | None,
        plan: Plan,
        admission_slot: AdmissionSlot,
        budget: Budget,
        abort: AbortController,
    ) -> Run:
        """Build a run: a new one, or one that another process spawned, as it was then."""
        agent, request, services = plan.agent, plan.request, self._services
        asks_by_itself = agent.external is not None
        inherits = agent.model is None
        if parent is not None and not asks_by_itself:
            agent = _with_model_of(parent, agent)
        if parent is not None and inherits and not asks_by_itself and agent.effort == parent.agent.effort:
            ask, label = parent.context.ask, parent.model
            compaction, window = parent.compaction, parent.window
        elif agent.model is not None and not asks_by_itself:
            ask, label, window, _ = services.model(agent.model, agent.effort)
            compaction = services.compaction(window)
        else:
            ask, label, compaction, window = no_model, str(agent.model or ""), None, None
        gates = parent.gates if parent is not None else ()
        background = request.background if request.background is not None else agent.background
        permissions, after_plan = self._permissions(agent.permissions, parent), None
        if plan.is_fork and parent is not None:  # It goes on where its parent is, and cannot leave that by itself.
            permissions = parent.context.permissions
        elif agent.permissions.mode("plan") is not None:
            after_plan = self._permissions(agent.permissions.without_mode("plan"), parent)
        activity = RunActivity(services.record, partial(services.feed, info), services.clock)
        context = ToolUseContext(
            run=info,
            ask=ask,
            system_messages=plan.system,
            cwd=plan.cwd,
            abort=abort,
            mailbox=Mailbox(info.path),
            budget=budget,
            record=activity.record,
            on_chunk=activity.feed,
            durable=services.durable,
            confirm_ownership=services.confirm_ownership,
            tree=self._tree,
            hooks=services.hooks(agent, gates, parent is not None),
            wait_at_limit=self._limit_waits,
            pauses=self._supervisor.pauses,
            meter=services.meter,
            approve=services.approve,
            withdraw_restored=services.withdraw_restored,
            safety=services.safety,
            permissions=permissions,
            permissions_after_plan=after_plan,
            spill=services.spill(info),
            store_blob=services.store_blob(info),
            load_blob=services.load_blob(info),
            processes=services.processes,
            read_roots=services.read_roots(info),
            clock=services.clock,
            file_cache=dict(parent.context.file_cache) if parent is not None else {},
        )
        run = Run(
            info=info,
            name=plan.name,
            agent=agent,
            parent=parent,
            request=request,
            context=context,
            activity=activity,
            admission_slot=admission_slot,
            limits=plan.limits,
            max_turns=agent.max_turns or (parent.max_turns if parent is not None else MAX_TURNS),
            model=label,
            window=window,
            watch=plan.watch,
            background=background or request.detached,
            detached=request.detached,
            rights=(*parent.rights, plan.toolset) if parent is not None else (plan.toolset,),
            gates=(*gates, *(each for each in gates_of(agent.hooks) if each not in gates)),
            compaction=compaction,
            grant=plan.grant,
            step_ceiling=plan.step_ceiling,
            policy_ceiling=plan.policy_ceiling,
            sandbox=RunSandbox(
                capsule=plan.capsule,
                clone=plan.clone if plan.grant is not None else None,
                # Such a folder has no link in it, and is not resolved again: it may have become one since.
                mount_roots={
                    **mount_roots_of(parent, plan.grant or plan.step_ceiling, services, agent),
                    **{each: each for each in plan.definition_mounts},
                },
                definition_mounts=plan.definition_mounts,
                forwarding=services.forwarding,
                mcp_client=services.mcp_client,
                mcp_packages=services.mcp_packages,
                loaded_tools=dict.fromkeys(parent.sandbox.loaded_tools, False) if plan.is_fork and parent else {},
                variables=partial(_variables_of, info, plan.grant, services),
            ),
            time_started_at=services.clock.monotonic(),
        )
        if run.watch.is_active:
            activity.watcher = RunWatch(run, services.clock, self._timers, self._watch_actions)
        inherited = parent is not None and parent.context.budget_note is not None
        if agent.budget_note or (agent.budget_note is None and inherited):
            context.budget_note = partial(budget_note, run, self._register.limits)
        context.on_usage = run.count
        run.sandbox.on_start = partial(self._end_lost_monitors, run)
        run.sandbox.admit_server = partial(self._register.admission.holding, run)
        run.sandbox.join_server = partial(self._supervisor.tree_servers.join, run)
        run.sandbox.on_process_change = partial(self._supervisor.time_stops.update, run)
        context.wait_without_time = partial(self._supervisor.time_stops.while_waiting, run)
        context.slot = Slot(self._register.slots, lambda waits: self._record_waiting(run, waits))
        context.tools = plan.toolset.tools if plan.is_fork else self._with_types(run, plan.toolset.tools)
        return run

    def _permissions(self, own: Permissions, parent: Run | None) -> Permissions:
        """Return the rules for a run: those of the tree, what narrows the runs above it, and its definition's own."""
        of_tree = self._services.permissions
        if parent is None or parent.context.permissions == of_tree:
            return of_tree.merge(own) if own else of_tree
        return of_tree.merge(parent.context.permissions.narrowing()).merge(own)

    def show_types(self, run: Run) -> None:
        """Update the Agent tool of a living run to list the current types."""
        run.context.tools = self._with_types(run, run.context.tools)

    def _with_types(self, run: Run, tools: tuple[BaseTool, ...]) -> tuple[BaseTool, ...]:
        """Return the tools, with an Agent tool that lists exactly the types that this run may spawn."""
        if not any(tool.name == "Agent" for tool in tools):
            return tools
        types = tuple(types_to_offer(run, tools, self._services).items())
        return tuple(_agent_tool(types) if tool.name == "Agent" else tool for tool in tools)

    def _record_waiting(self, run: Run, waits: bool) -> None:
        if not waits:
            self._supervisor.apply_fact(run, Fact.WAIT_ENDED)
        elif is_halted(run):
            self._supervisor.apply_fact(run, Fact.PAUSE_BEGAN, pause_reason(run))
        else:
            self._supervisor.apply_fact(run, Fact.WAIT_BEGAN, ROOM if run.activity.room_waits else "")


def _with_model_of(parent: Run, agent: Agent) -> Agent:
    """Return a child's definition with the model and the effort that it inherits."""
    model = parent.agent.model if agent.model is None else agent.model
    effort = parent.agent.effort if agent.effort is None else agent.effort
    return agent if model is agent.model and effort == agent.effort else agent.replace(model=model, effort=effort)


@lru_cache(maxsize=256)
def _agent_tool(types: tuple[tuple[str, str], ...]) -> BaseTool:
    """Return the shared Agent tool of all runs that may spawn exactly these types.

    The tool has no state, and making one is costly.
    """
    return agent_tool(dict(types))


def _variables_of(info: RunInfo, grant: Grant | None, services: TreePorts) -> Mapping[str, str]:
    """Return the variables of a run's sandbox; none without a place for one."""
    return services.placement.env(info, grant) if services.placement is not None and grant is not None else {}


async def no_model(context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessage]:
    """Raise InvalidValue: the model port of a run that has no model."""
    if context.run.path:
        raise InvalidValue(
            "model", None, f"a model for {context.run.path}: neither its definition nor an agent above it has one"
        )
    yield AIMessage("")  # never reached; makes this a generator, as every model port is
