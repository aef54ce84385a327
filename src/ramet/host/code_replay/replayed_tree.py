"""The tree as its replayed runs see it: each spawn is compared, and leads to the recorded run or to its result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ramet.agent.composition.steps import Composition
from ramet.agent.definition import Agent, as_agent
from ramet.core.errors import InvalidValue
from ramet.core.ids import CallId, Path, RunId
from ramet.core.outcome import Result
from ramet.host.code_replay.recorded_runs import RecordedRun
from ramet.host.code_replay.recorded_tools import wait_for_ever, wait_in_call
from ramet.host.code_replay.replay_ports import ReplayPorts, next_run_id
from ramet.host.code_replay.step_comparison import NOTHING, StepComparison
from ramet.models.json_values import to_json_value
from ramet.spawn.run import Run
from ramet.tools.context import ToolUseContext
from ramet.tools.run_info import StopReceipt
from ramet.tools.spawn_request import SpawnHandle, SpawnRequest

if TYPE_CHECKING:
    from ramet.spawn.tree import RunTree


def prepare(run: Run, tree: RunTree, ports: ReplayPorts) -> None:
    """Give a run that was spawned a moment ago the recorded answers, before it begins."""
    run.context.tree = ReplayedTree(ports, tree)
    ports.replace_tools(run.context)


class ReplayedTree:
    """The tree as its replayed runs see it: each spawn is compared, and leads to the recorded run."""

    def __init__(self, ports: ReplayPorts, tree: RunTree) -> None:
        self._ports, self._tree = ports, tree
        self._record, self._comparison = ports.record, ports.comparison

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree, name)

    async def spawn(self, parent: ToolUseContext, request: SpawnRequest) -> SpawnHandle:
        """Spawn the child that the journal has at this place, or return its recorded result."""
        run = self._record.runs[parent.run.id]
        agent = self._definition(request)
        if agent is None:
            return await self._tree.spawn(parent, request)  # It raises Unknown, which the model reads.
        child = self._child(run, request)
        wanted = _wanted(request, agent)
        if child is None:
            if not run.is_complete and not (request.call_id and run.answers[request.call_id]):
                await wait_for_ever()  # The record ends before this spawn.
            self._comparison.differ(run, self._comparison.next_step(run), "one more child", NOTHING, wanted)
            await wait_for_ever()
            raise AssertionError("the run is ended")
        self._ports.claimed.add(child.id)
        if self._differs(child, wanted):
            await wait_for_ever()
        if not child.is_replayed:
            return await self._recorded_handle(child)
        is_model = agent.function is None or isinstance(agent.function, Composition)
        if not is_model:
            self._comparison.differ(child, child.steps[0], "start: kind", "a model", "a function")
            await wait_for_ever()
        if request.agent is not None:
            request = dataclasses.replace(request, agent=self._ports.in_host(agent))
        request = dataclasses.replace(request, policy=None, isolation=None, model=None)
        with next_run_id(RunId(child.id)):
            handle = await self._tree.spawn(parent, request)
        prepare(handle.run, self._tree, self._ports)
        return handle

    async def send(self, sender: ToolUseContext, to: str, text: str, **options: Any) -> str:
        """Send mail to a replayed run; mail to any other one is on record."""
        if self._is_replayed(to):
            return await self._tree.send(sender, to, text, **options)
        return ""

    async def stop(self, asker: ToolUseContext, target: str, reason: str) -> StopReceipt:
        """Stop a replayed run; the end of any other one is on record."""
        if self._is_replayed(target):
            return await self._tree.stop(asker, target, reason)
        return StopReceipt((), ())

    def _is_replayed(self, target: str) -> bool:
        for run in self._record.runs.values():
            if not run.is_replayed and target in (run.id, run.path, run.spawn.name):
                return False
        return True

    def _definition(self, request: SpawnRequest) -> Agent | None:
        """Return the definition of a request; that of a fork by its parent's name; None for an unknown type."""
        if request.agent is not None:
            return as_agent(request.agent)
        known = self._tree.register.services.definitions
        if request.subagent_type is None:
            return Agent(name="fork")
        return known.get(request.subagent_type)

    def _child(self, run: RecordedRun, request: SpawnRequest) -> RecordedRun | None:
        """Return the recorded child of a call, or the next one that no call spawned."""
        call = request.call_id or CallId("")
        open_children = (
            each
            for each in run.children
            if (each.spawn.parent_call or "") == call and each.id not in self._ports.claimed
        )
        return next(open_children, None)

    def _differs(self, child: RecordedRun, wanted: Mapping[str, Any]) -> bool:
        spawn = child.spawn
        recorded = {"agent": spawn.agent, "prompt": spawn.prompt, **_arguments(spawn.birth)}
        for name, value in wanted.items():
            if name in recorded and value is not None and value != recorded[name]:
                step = child.steps[0]
                self._comparison.differ(child, step, f"{step.title}: {name}", recorded[name], value)
                return True
        return False

    async def _recorded_handle(self, child: RecordedRun) -> SpawnHandle:
        await wait_in_call(self._comparison.gate.wait_before(child.steps[0].seq))
        self._comparison.mark_start(child)
        return RecordedHandle(child, self._comparison)


class RecordedHandle:
    """The handle of a child that is not replayed: its result is the recorded one."""

    def __init__(self, child: RecordedRun, comparison: StepComparison) -> None:
        self._child, self._comparison = child, comparison
        self.id, self.name, self.path = RunId(child.id), child.spawn.name, Path(child.path)
        self.background = child.spawn.background

    async def result(self) -> Result:
        """Wait until the child ends in the record, and return its result."""
        if self._child.result is None:
            await wait_for_ever()  # The record ends before the child does.
            raise AssertionError("the run is ended")
        await wait_in_call(self._comparison.gate.wait_before(self._child.end_seq))
        return self._child.result

    end = result

    async def cancel(self, reason: str = "") -> StopReceipt:
        """Return at once: its end is on record."""
        return StopReceipt((), ())


def _wanted(request: SpawnRequest, agent: Agent) -> dict[str, Any]:
    """Return what a request asks for, as far as it can be compared."""
    wanted: dict[str, Any] = {}
    if request.subagent_type is not None or request.agent is not None:
        wanted["agent"] = agent.name
    wanted["prompt"] = request.prompt
    if request.args or request.kwargs:
        wanted["args"] = _data(list(request.args))
        wanted["kwargs"] = _data(dict(request.kwargs))
    return wanted


def _arguments(birth: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded arguments of a function, unless they are packed or are not data."""
    return {name: birth[name] for name in ("args", "kwargs") if name in birth and _data(birth[name]) is not None}


def _data(value: Any) -> Any:
    try:
        return to_json_value(value, "args")
    except InvalidValue:
        return None
