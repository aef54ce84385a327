"""The tree of runs: the interface for its tools and its owner."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ramet.concurrency.deadline import wait_with_timeout
from ramet.concurrency.slots import Slot
from ramet.core.errors import Denied, InvalidValue, MailRefused, Unknown
from ramet.core.events import MovedToBackground
from ramet.core.ids import CallId
from ramet.core.limits import SpawnLimits
from ramet.core.outcome import Result, Status
from ramet.core.policy.session_access import SESSION_PREFIX
from ramet.core.tool_names import SEND_MESSAGE
from ramet.spawn.birth.forked_request import forked_request
from ramet.spawn.birth.plan import types_to_offer
from ramet.spawn.birth.record import key_of, restore_counters, with_dedupe_key
from ramet.spawn.birth.run_builder import RunBuilder
from ramet.spawn.birth.spawner import Spawner
from ramet.spawn.handle import Handle
from ramet.spawn.lifecycle.group_requests import PeerRequests, check_mail
from ramet.spawn.lifecycle.mail import MailRouter
from ramet.spawn.lifecycle.monitor_reports import MonitorReports
from ramet.spawn.lifecycle.supervisor import Supervisor
from ramet.spawn.ports import Authoring, Memory, TreePorts
from ramet.spawn.registry import RunRegistry
from ramet.spawn.run import Run
from ramet.spawn.verdict import partial_text
from ramet.spawn.watches.actions import WatchActions
from ramet.spawn.watches.run_waits import view_of
from ramet.tools.agents.report_framing import report
from ramet.tools.context import ToolUseContext, current_call
from ramet.tools.decisions import PeerRequest
from ramet.tools.permission_checks import rule_on_call
from ramet.tools.run_info import MonitorReport, RunView, StopReceipt
from ramet.tools.spawn_request import CreationReceipt, SpawnHandle, SpawnRequest, check_request
from ramet.wire.guest_protocol.answer_data import StateReply
from ramet.wire.guest_protocol.guest_to_host import UseState


class RunTree:
    """The implementation of `ramet.tools.context.Tree` for one tree; each call comes from a run of the tree."""

    def __init__(self, services: TreePorts, limits: SpawnLimits) -> None:
        self.register = RunRegistry(services, limits)
        self.supervisor = Supervisor(self.register)
        self.post = MailRouter(self.register, self.supervisor)
        self.peers = PeerRequests(self.register, self.supervisor, self.post)
        self.monitor_reports = MonitorReports(self.post)
        builder = RunBuilder(
            self.register,
            self.supervisor,
            tree=self,
            watch_actions=WatchActions(self.supervisor, self.post),
            end_lost_monitors=self.monitor_reports.end_lost,
        )
        self.spawner = Spawner(self.register, self.supervisor, builder)

    def handle(self, run: Run) -> Handle:
        return Handle(run, self.register, self.supervisor, self.post)

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> Handle:
        """Spawn a child of the run of this context.

        Raises SpawnRefused, Unknown or InvalidValue.
        """
        check_request(request)
        run = self._run_of(parent)
        if request_key := _sandbox_request(run):
            if (known_run := self.register.runs_by_request.get(request_key)) is not None:
                # This request led to it, and its sandbox has not received the answer.
                return await self._handle_of_child(known_run)
            request = dataclasses.replace(request, request_key=request_key)
        request = with_dedupe_key(run, request)
        known = self.register.known_spawns.pop((run.info.id, key_of(request)), None)
        if known is not None and (not request.call_id or known.request.prompt == request.prompt):
            return await self._handle_of_child(known)  # The same call requested it in a process that has ended.
        return await self._spawn_checked(run, request, parent.slot)

    async def spawn_below(self, parent: Run, request: SpawnRequest) -> Handle:
        """Spawn a child of a run, as the tree's owner. Raises like `spawn`."""
        check_request(request)
        return await self._spawn_checked(parent, request)

    async def _spawn_checked(self, parent: Run, request: SpawnRequest, slot: Slot | None = None) -> Handle:
        if request.branch:
            request = dataclasses.replace(request, begins_at=await self._memory().begins_at(parent))
        if request.fork_of:
            request = await self._with_fork_source(parent, request)
        return await self._handle_of_child(await self.spawner.spawn(parent, request, slot))

    async def _with_fork_source(self, parent: Run, request: SpawnRequest) -> SpawnRequest:
        """Return a request for a fork of a run of another tree with what it begins with.

        Raises Unknown, InvalidValue, and DefinitionMissing if only the other tree has a safety gate.
        """
        services = self.register.services
        if services.fork_source is None:
            raise InvalidValue("fork_of", request.fork_of, "no run: without a journal, runs are not recorded")
        owner = self.register.runs[parent.info.root].request.state_owner
        source = await services.fork_source(parent.info.root, request.fork_of, request.fork_at)
        return forked_request(request, source, owner=owner, is_gated=services.safety is not None)

    async def _handle_of_child(self, child: Run) -> Handle:
        """Return the handle of a child, after creating the branch that the child works on."""
        if child.request.begins_at:
            await self._memory().branch(child)  # Otherwise the branch would exist only after the child's first write.
        return self.handle(child)

    def find_recorded_spawn(self, parent: ToolUseContext, prefix: str) -> str | None:
        """Return the key with this prefix of a spawn that this run requested in a process that has ended."""
        known = self.register.known_spawns
        return next((key for run, key in known if run == parent.run.id and key.startswith(prefix)), None)

    def resume_children(self, parent: ToolUseContext) -> Sequence[Handle]:
        """Return the children that this run has from a process that has ended; later requests are new."""
        run, register = self._run_of(parent), self.register
        restore_counters(run, register.known_spawns)
        for each in [each for each in register.known_spawns if each[0] == run.info.id]:
            del register.known_spawns[each]
        return [self.handle(each) for each in register.runs.values() if each.parent is run]

    async def move_to_background(self, parent: ToolUseContext, child: SpawnHandle) -> None:
        """Make a child of this run a background run: a notice reports its end. Raises Unknown for another run."""
        run = self.register.runs.get(child.id)
        if run is None or run.parent is None or run.parent.info.id != parent.run.id:
            raise Unknown("child", child.id, ())
        if not run.background:
            run.background = True
            run.context.emit(MovedToBackground)
        self.post.report_end(run)

    def detach_calls(self, parent: ToolUseContext, calls: Collection[CallId]) -> None:
        """Make the children of these calls of this run background runs: a notice reports their ends."""
        for each in list(self.register.runs.values()):
            if each.parent is not None and each.parent.info.id == parent.run.id and each.info.parent_call in calls:
                each.background = True
                self.post.report_end(each)

    def spawnable(self, parent: ToolUseContext) -> Mapping[str, str]:
        run = self._run_of(parent)
        return types_to_offer(run, run.context.tools, self.register.services)

    async def send(
        self,
        sender: ToolUseContext,
        to: str,
        text: str,
        *,
        notify_when_idle: bool = False,
        dedupe_s: float | None = None,
    ) -> str:
        """Deliver a message of this run; `dedupe_s` is that of `deliver`.

        Raises Unknown, MailRefused, InvalidValue, or Denied for a message to another session.
        """
        if to.startswith(SESSION_PREFIX):
            if notify_when_idle or dedupe_s is not None:
                raise InvalidValue("to", to, "an agent of this session, with notify_when_idle or dedupe_s")
            return await self._send_to_session(self._run_of(sender), to, text)
        target = self.register.find(to, self._run_of(sender))
        if target.info.id == sender.run.id:
            raise MailRefused(to, "that is yourself")
        check_mail(self._run_of(sender), target)
        request_key = _sandbox_request(self._run_of(sender))
        if request_key in self.register.mail_by_request:
            return f"Delivered to {target.info.path}."
        notify = sender.run.id if notify_when_idle else ""
        return self.post.deliver(
            target, text, sender=sender.run.path, kind="agent", request_id=request_key, notify=notify, dedupe_s=dedupe_s
        )

    async def _send_to_session(self, sender: Run, to: str, text: str) -> str:
        if sender.parent is not None:
            raise Denied("message to another session", "only the first agent of a session may send one")
        if (sessions := self.register.services.other_sessions) is None:
            raise Unknown("session", to)
        ruling = rule_on_call(sender.context, SEND_MESSAGE, {"to": to, "message": text})
        if ruling.verdict == "deny":  # Here as well: the loop of a sandbox, which applies the rules, may be hostile.
            raise Denied("message to another session", ruling.reason)
        return await sessions.send(sender, to, text)

    async def ask_peer(self, asker: ToolUseContext, request: PeerRequest) -> str:
        """Execute a request of this run to its lead or a peer.

        Raises MailRefused, Unknown, Denied or InvalidValue.
        """
        run = self._run_of(asker)
        return await self.peers.ask(run, request, _sandbox_request(run))

    async def report_monitor(self, reporter: ToolUseContext, report: MonitorReport) -> str:
        """Take a report of this run about a command that it monitors.

        Raises InvalidValue, Unknown or MailRefused.
        """
        run = self._run_of(reporter)
        return self.monitor_reports.take(run, report, _sandbox_request(run))

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        """Stop a run below the asker.

        Raises Unknown or Denied.
        """
        run = self._require_descendant(asker, target, "stop")
        if not run.is_living:
            raise Unknown("running agent", target, tuple(each.name for each in self.register.living()))
        return await self.supervisor.stop(run, reason)

    async def output(self, asker: ToolUseContext, target: str, *, block: bool, timeout_s: float) -> str:
        """Return the output of a run below the asker.

        Raises Unknown or Denied.
        """
        run = self._require_descendant(asker, target, "read")
        if block and run.is_living:
            end, clock = asyncio.shield(run.recorded_end()), self.register.services.clock
            with suppress(TimeoutError):
                await wait_with_timeout(end, clock=clock, seconds=timeout_s)
        if run.result is not None:
            return f"status: {run.result.status}\n{report(run.result, name=run.name)}"
        partial = Result(status=Status.COMPLETED, value=partial_text(run) or "(nothing yet)")
        return f"status: {run.state}\n{report(partial, name=run.name)}"

    async def list_runs(self, asker: ToolUseContext, *, below: bool = False) -> Sequence[RunView]:
        """Return the runs of the tree, in order of path; with `below`, only the asker and the runs below it."""
        return self.views(self._run_of(asker) if below else None)

    async def create(self, creator: ToolUseContext, entry: Mapping[str, Any]) -> CreationReceipt:
        """Create an agent from a recipe.

        Raises InvalidValue or Denied.
        """
        return await self._authoring().create(self._run_of(creator), entry)

    async def call_task(
        self,
        parent: ToolUseContext,
        ref: str,
        task: str,
        arguments: Mapping[str, Any],
        *,
        name: str | None = None,
        branch: bool = False,
        call_id: CallId | None = None,
    ) -> Handle:
        """Run a task of a created agent as a child of this run.

        Raises AgentNotResolved or Denied.
        """
        request = await self._authoring().spawn_request(self._run_of(parent), ref, task, arguments)
        request = dataclasses.replace(
            request, name=name or request.name, branch=branch, call_id=call_id or request.call_id
        )
        return await self.spawn(parent, request)

    def _authoring(self) -> Authoring:
        authoring = self.register.services.authoring
        if authoring is None:
            raise Denied("creating agents", "this runtime does not store agents that agents create")
        return authoring

    async def use_state(self, user: ToolUseContext, request: UseState, body: bytes = b"") -> tuple[StateReply, bytes]:
        """Execute an operation on the own state of the run of this context.

        Raises Denied if agents keep no state.
        """
        return await self._memory().use(self._run_of(user), request, body)

    def _memory(self) -> Memory:
        memory = self.register.services.memory
        if memory is None:
            raise Denied("state", "this runtime does not store states of agents")
        return memory

    def views(self, top: Run | None = None) -> Sequence[RunView]:
        """Return all runs of the tree, or this run and the runs below it, in order of path."""
        runs = (each for each in self.register.runs.values() if top is None or each is top or each.is_below(top))
        return sorted(map(view_of, runs), key=lambda view: view.path)

    def _run_of(self, context: ToolUseContext) -> Run:
        return self.register.runs[context.run.id]

    def _require_descendant(self, asker: ToolUseContext, target: str, verb: str) -> Run:
        own_run = self._run_of(asker)
        run = self.register.find(target, own_run)
        if not run.is_below(own_run):
            raise Denied(f"{verb} {target}", "it is not below you")
        return run


def _sandbox_request(run: Run) -> str:
    """Return the request of the run's sandbox that caused this call; empty for any other call."""
    call = current_call.get()
    return call.request_key if call is not None and call.context is run.context else ""
