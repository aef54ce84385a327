"""The only module that spawns: every run is narrowed, admitted, reserved, recorded and started here.

A spawn that fails leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import pathlib
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from langchain_core.messages import BaseMessage, HumanMessage

from ramet.agent import context as conversation
from ramet.agent.definition import Agent
from ramet.concurrency.cancel import AbortController
from ramet.concurrency.slots import Slot, Slots
from ramet.core.budget import Budget
from ramet.core.errors import BudgetExceeded, Bug, SpawnRefused
from ramet.core.events import ClampEvent, Notice, RunSpawned
from ramet.core.ids import ROOT_NAME, Path, SessionId, child_path
from ramet.core.limits import Limits
from ramet.core.outcome import Usage
from ramet.core.policy.policy import Grant
from ramet.isolation.git import worktree
from ramet.isolation.git.worktree import Worktree
from ramet.models.messages import encode
from ramet.spawn.admission import AdmissionSlot
from ramet.spawn.birth.child_budget import BirthReservation, can_wait_at_limit, reserve_birth
from ramet.spawn.birth.clone_plan import with_clone
from ramet.spawn.birth.plan import Plan, folder_text, plan_birth, plan_root, system_messages
from ramet.spawn.birth.policy_decisions import DecidedRequest, decide_child, decide_root, record
from ramet.spawn.birth.record import to_data
from ramet.spawn.birth.run_builder import RunBuilder
from ramet.spawn.birth.sibling_list import with_sibling_list
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.ports import ModelPorts
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.spawn.sandbox.run_folder import create_folder
from ramet.tools.context import ToolUseContext, current_call
from ramet.tools.run_info import RunInfo
from ramet.tools.spawn_request import SpawnRequest

if TYPE_CHECKING:
    from langchain_core.tools import BaseTool

_AGENT_USAGE = Usage(agents=1)
#: The folder of a run in a sandbox in which its `cwd` is not mounted, in words that are the same for each run.
_OWN_FOLDER = "a folder of your own, which is empty at first"


class Spawner:
    """The spawner of one tree's runs; there is no other way to spawn."""

    def __init__(self, register: RunRegistry, supervisor: Supervisor, builder: RunBuilder) -> None:
        self._register, self._supervisor, self.builder = register, supervisor, builder
        self._services = register.services

    async def spawn(self, parent: Run, request: SpawnRequest, slot: Slot | None = None) -> Run:
        """Spawn a child of `parent`, or raise and leave nothing behind.

        `slot` is released while waiting for room. Raises SpawnRefused if a limit prevents the spawn, Unknown for a
        missing type or model. Raises InvalidValue for an impossible request, NoToolsLeft if the tools resolve to
        nothing.
        """
        try:
            return await self._spawn(parent, request, slot)
        except SpawnRefused as refusal:
            self._services.on_refusal(refusal)
            raise

    async def _spawn(self, parent: Run, request: SpawnRequest, slot: Slot | None) -> Run:
        plan = plan_birth(parent, request, self._services, self._register.limits)
        decide, decided_request = self._services.decide, None
        if decide is not None:
            decided_request = await decide_child(decide, parent, plan, slot)
        with ExitStack() as rollback:
            if decided_request is not None:
                rollback.callback(_count_failed_spawn, parent)
                # Planned again: what was free before the answer may be taken. The agent is the one that was asked
                # about.
                plan = plan_birth(
                    parent,
                    decided_request.request,
                    self._services,
                    self._register.limits,
                    decided=(plan, decided_request.ceiling),
                )
            parent.admitted_spawns += 1
            rollback.callback(_uncount_spawn, parent)
            if plan.grant is not None:
                await self._check_isolation(plan.grant)
            # A birth that waits for room holds what it reserved; one that waits at a limit, or for the end of a pause,
            # holds no room.
            place, asking = None, _asking_context(parent, slot)
            if not can_wait_at_limit(parent.context.budget):
                await asking.wait_unpaused()
                place = await self._admit(parent, plan, slot, rollback)
            try:
                reserve = partial(_reserve, parent, plan)
                share = reserve() if place else await asking.reserve(reserve, BirthReservation.cancel)
            except BudgetExceeded as refusal:
                raise SpawnRefused(f"budget {refusal.resource}", str(refusal), free=refusal.left) from refusal
            rollback.callback(share.cancel)
            if place is None:
                share.agent.keep()  # The place may become free only when another run goes on.
            admission_slot = place or await self._admit(parent, plan, slot, rollback)
            if plan.needs_clone:
                plan = await with_clone(plan, parent, self._services)
                self._check_living(parent)  # It may have been stopped while git worked.
            own_tree = await self._worktree(parent, plan)
            run = self._create_run(parent, plan, admission_slot, share.budget, own_tree)
            rollback.pop_all()
        share.confirm()
        self._start_run(run, parent, plan)
        return run

    async def plan_root(
        self,
        agent: Agent,
        request: SpawnRequest,
        limits: Limits,
        *,
        tools: Sequence[BaseTool],
        cwd: pathlib.Path,
        session: str | None = None,
        isolation: str | None = None,
    ) -> Plan:
        """Plan a root that the policy adapter, if there is one, allows, and that a backend here can isolate.

        Raises SpawnRefused, PolicyAdapterFailed, IsolationUnavailable, NoWorktree, and as `plan_root_now`.
        """
        decided = DecidedRequest(request)
        if self._services.decide is not None:
            try:
                decided = await decide_root(self._services.decide, agent, request, limits, session=session)
            except SpawnRefused as refusal:
                self._services.on_refusal(refusal)
                raise
        plan = self._plan_root(agent, decided, limits, tools, cwd, isolation)
        if (grant := plan.grant or plan.step_ceiling) is not None:
            await self._check_isolation(grant)
        return await with_clone(plan, None, self._services) if plan.needs_clone else plan

    def plan_root_now(
        self, agent: Agent, request: SpawnRequest, limits: Limits, *, tools: Sequence[BaseTool], cwd: pathlib.Path
    ) -> Plan:
        """Plan a root in a tree without a policy adapter; its backend is looked for when its first turn begins.

        Raises InvalidValue for an impossible request, NoToolsLeft if the tools resolve to nothing, NotShippable.
        """
        if self._services.decide is not None:
            raise Bug("the policy adapter was not asked about this root")
        return self._plan_root(agent, DecidedRequest(request), limits, tools, cwd)

    def root(
        self, plan: Plan, *, session: str | None = None, persistent: bool = True, history: Sequence[BaseMessage] = ()
    ) -> Run:
        """Spawn a planned root. A session's root waits for its first prompt."""
        agent, run_id = plan.agent, self._services.mint()
        info = RunInfo(
            id=run_id,
            root=run_id,
            path=Path(ROOT_NAME),
            agent=agent.name,
            session=SessionId(session) if session else None,
        )
        budget = Budget(plan.limits, scope=info.path)
        slot, abort = self._register.admission.admit_root(), self._register.abort.child()
        run = self.builder.build(info, None, plan, slot, budget, abort)
        run.persistent = persistent
        run.context.history[:] = history
        _release_history(run)
        self._create_folder(run, plan)
        spawn_data = self._spawn_record(run, agent.initial_prompt if persistent else plan.request.prompt)
        self._register.add(run)
        _record_spawn(run, plan, spawn_data, self._services.model)
        if plan.decision is not None:
            record(run.context, plan.decision, agent.name)
        return run

    def _plan_root(
        self,
        agent: Agent,
        decided: DecidedRequest,
        limits: Limits,
        tools: Sequence[BaseTool],
        cwd: pathlib.Path,
        isolation: str | None = None,
    ) -> Plan:
        return plan_root(
            agent,
            decided.request,
            limits,
            self._services,
            tools=tools,
            cwd=cwd,
            may_spawn=self._register.limits.depth > 0,
            isolation=isolation,
            ceiling=decided.ceiling,
            decision=decided.decision,
        )

    async def _check_isolation(self, grant: Grant) -> None:
        """Check that a backend here isolates a run as strictly as its grant requires.

        Raises IsolationUnavailable.
        """
        assert self._services.placement is not None, "a plan has no grant without a placement"
        await self._services.placement.backend(grant)

    async def _admit(self, parent: Run, plan: Plan, slot: Slot | None, rollback: ExitStack) -> AdmissionSlot:
        """Return a place among the living, which `rollback` releases.

        Raises SpawnRefused if the parent has been stopped.
        """
        place = self._register.admission.try_admit(parent, plan.share) or await self._wait_for_admission(
            parent, plan, slot
        )
        rollback.callback(self._register.admission.release, place)
        self._check_living(parent)
        return place

    async def _wait_for_admission(self, parent: Run, plan: Plan, slot: Slot | None) -> AdmissionSlot:
        """Wait for a place.

        If the wait is abandoned, no place is kept, not even one that was granted at that moment.
        """
        admission = asyncio.ensure_future(self._register.admission.admit(parent, plan.share))
        call = current_call.get(None)
        parent.activity.room_waits += 1
        try:
            await (admission if slot is None else slot.while_waiting(admission, key=call.step_id if call else None))
        except BaseException:
            if admission.done() and not admission.cancelled() and admission.exception() is None:
                self._register.admission.release(admission.result())
            admission.cancel()
            raise
        finally:
            parent.activity.room_waits -= 1
        return admission.result()

    # ---- after admission: nothing here waits except the worktree

    def _check_living(self, parent: Run) -> None:
        if not parent.is_living or parent.context.abort.aborted:
            raise SpawnRefused("stopped", f"{parent.info.path} is being stopped", free=0)

    async def _worktree(self, parent: Run, plan: Plan) -> Worktree | None:
        if plan.isolation != "worktree" or plan.needs_clone:
            return None
        await parent.context.wait_persisted()
        git = self._services.git
        with parent.context.track_process():
            new_worktree = await worktree.create(plan.cwd, plan.name or plan.agent.name, git=git)
        try:
            self._check_living(parent)  # It may have been stopped while git worked.
        except SpawnRefused:
            await worktree.finish(new_worktree, git=git)
            raise
        return new_worktree

    def _create_run(
        self,
        parent: Run,
        plan: Plan,
        admission_slot: AdmissionSlot,
        own_budget: Budget | None,
        own_tree: Worktree | None,
    ) -> Run:
        parent.spawn_count += 1
        parent.failed_spawns = 0
        name = self._register.free_name(plan.name) if plan.name else ""
        path = child_path(parent.info.path, name or str(parent.spawn_count))
        info = RunInfo(
            id=self._services.mint(),
            root=parent.info.root,
            path=path,
            agent=plan.agent.name,
            depth=parent.info.depth + 1,
            parent=parent.info.id,
            parent_call=plan.request.call_id,
            session=parent.info.session,
        )
        parent_abort = self._register.abort if plan.request.detached else parent.context.abort
        budget = parent.context.budget
        if own_budget is not None:
            budget, own_budget.scope = own_budget, path
        cwd = plan.cwd if own_tree is None else own_tree.cwd
        system = plan.system
        if own_tree is not None and not plan.is_fork:  # A fork's prompt stays its parent's; its brief names the folder.
            system = system_messages(plan.agent, plan.cwd, self._services, folder=folder_text(f"the folder {cwd}"))
        plan = dataclasses.replace(plan, name=name or path, cwd=cwd, system=system)
        run = self.builder.build(info, parent, plan, admission_slot, budget, AbortController(parent_abort))
        run.own_budget = own_budget
        run.worktree = own_tree
        self._create_folder(run, plan)
        return run

    def _create_folder(self, run: Run, plan: Plan) -> None:
        """Create the folder of a run that works in a sandbox; its prompt says so if it does not see `cwd` there."""
        create_folder(run, self._services.placement)
        if run.grant is None or plan.is_fork or run.agent.function is not None or run.visible_cwd == plan.cwd:
            return
        folder = f"the folder {run.visible_cwd}" if run.sandbox.clone is not None else _OWN_FOLDER
        text = folder_text(folder, has_mounts=bool(run.grant.mounts.paths))
        run.context.system_messages = system_messages(plan.agent, plan.cwd, self._services, folder=text)

    # ---- recorded, then started

    def _start_run(self, run: Run, parent: Run, plan: Plan) -> None:
        brief, shared_count = plan.request.prompt, 0
        if plan.agent.sibling_list or parent.agent.peers:
            brief = with_sibling_list(brief, run, list(self._register.runs.values()))
        if plan.is_fork:
            if run.worktree is not None or run.sandbox.clone is not None:
                brief = f"(You work in your own copy of the repository: {run.visible_cwd}.)\n\n{brief}"
            shared_count = len(parent.context.history)
            run.context.history[:] = conversation.fork(parent.context.history)
            first = conversation.fork_brief(brief)
        else:
            if run.agent.function is None and run.agent.external is None:
                run.context.history[:] = run.request.history
            _release_history(run)
            start = run.agent.initial_prompt
            first = HumanMessage(content=f"{start}\n\n{brief}" if start else brief)
        spawn_data = self._spawn_record(run, str(first.content), shared_count)
        self._register.add(run)
        _record_spawn(run, plan, spawn_data, self._services.model)
        parent.count(_AGENT_USAGE)
        run.pending.append(first)
        self._supervisor.start_turn(run)

    def _spawn_record(self, run: Run, brief: str, shared_count: int = 0) -> dict[str, Any]:
        """Return the data that the journal needs to continue the run; empty without a journal."""
        if self._services.durable is None:
            return {}
        answers = tuple(encode(each) for each in run.context.history[shared_count:])
        return to_data(run, brief, self._services, shared=shared_count, answers=answers)


def _release_history(run: Run) -> None:
    """Remove the messages of a fork's source from its request: a compaction of the conversation then frees them."""
    if run.request.history:
        run.request = dataclasses.replace(run.request, history=())


def _uncount_spawn(parent: Run) -> None:
    parent.admitted_spawns -= 1


def _asking_context(parent: Run, slot: Slot | None) -> ToolUseContext:
    """Return the context in which a birth waits while its parent is paused, or until a limit is raised.

    A birth that the tree's owner asks for is no work of the parent, which may be idle: its wait takes no slot of it.
    """
    context = parent.context
    may_wait = context.is_paused or can_wait_at_limit(context.budget)
    if slot is not None or current_call.get(None) is not None or not may_wait:
        return context
    return dataclasses.replace(context, slot=Slot(Slots(None)))


def _reserve(parent: Run, plan: Plan) -> BirthReservation:
    return reserve_birth(parent.context.budget, plan.limits, detached=plan.request.detached)


def _count_failed_spawn(parent: Run) -> None:
    parent.failed_spawns += 1


def _record_spawn(run: Run, plan: Plan, spawn_data: dict[str, Any], models: ModelPorts) -> None:
    run.context.emit(
        RunSpawned,
        name=run.name,
        prompt=plan.request.prompt,
        description=plan.request.description,
        mode="fork" if plan.is_fork else "fresh",
        model=run.model,
        tools=tuple(tool.name for tool in run.context.tools),
        background=run.background,
        detached=run.detached,
        session=run.info.session,
        window=run.window or 0,
        birth=spawn_data,
    )
    missing_tools = [*plan.toolset.unknown, *(f"{name} (not for this run)" for name in plan.toolset.withheld)]
    if missing_tools:
        text = f"tools that {run.agent.name} asked for and does not have: {', '.join(missing_tools)}"
        run.context.emit(Notice, text=text)
    effort, model = plan.agent.effort, run.agent.model
    if effort is not None and model is not None and not plan.is_fork and models(model, effort).ignores_effort:
        run.context.emit(Notice, text=f"effort {effort}: not honoured: the model {run.model} does not take it")
    for clamp in plan.clamps:
        run.context.emit(ClampEvent, field=clamp.name, asked=clamp.requested, given=clamp.granted)
