"""The ports of a replayed tree: its models, tools and approvals answer from the record, and it has no sandboxes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

from langchain_core.messages import AIMessage, AIMessageChunk

from ramet.agent.definition import Agent
from ramet.core.errors import BudgetExceeded, InvalidValue, ModelFailed
from ramet.core.events import Event, with_data
from ramet.core.ids import RunId
from ramet.core.policy.permissions import NO_PERMISSIONS
from ramet.host.code_replay.recorded_runs import NoReply, RecordedRun, RecordedRuns, Refusal
from ramet.host.code_replay.recorded_tools import stand_in, wait_for_ever
from ramet.host.code_replay.step_comparison import StepComparison
from ramet.models.messages import decode
from ramet.spawn.ports import ModelPort, TreePorts
from ramet.tools.context import ToolUseContext
from ramet.tools.decisions import Approval
from ramet.tools.model_request import ModelRequest

if TYPE_CHECKING:
    import pathlib

    from langchain_core.language_models import BaseChatModel
    from langchain_core.tools import BaseTool

    from ramet.models.effort import Effort

_MODEL_FAILED: Final = "ModelFailed"
#: The id of the run that this task is about to spawn.
_next_id: ContextVar[RunId | None] = ContextVar("ramet_replayed_run", default=None)


@contextmanager
def next_run_id(run: RunId) -> Iterator[None]:
    """Give the run that is spawned inside its recorded id, by which its events and its answers are found."""
    token = _next_id.set(run)
    try:
        yield
    finally:
        _next_id.reset(token)


class ReplayPorts:
    """The ports of a replayed tree, and its recorded answers."""

    def __init__(self, record: RecordedRuns, comparison: StepComparison) -> None:
        self.record, self.comparison = record, comparison
        self.claimed: set[str] = set()  #: children that a spawn has asked for
        self._originals: dict[str, Agent] = {}  #: definitions as they were given, by name

    def replace(self, ports: TreePorts) -> TreePorts:
        """Return ports that answer from the record."""
        mint, own_tools, record = ports.mint, ports.own_tools, ports.record

        def record_and_compare(event: Event) -> Event:
            recorded = record(event)
            self.comparison.take(with_data(recorded))
            return recorded

        def tools_of(agent: Agent, cwd: pathlib.Path) -> Sequence[BaseTool]:
            return own_tools(self._originals.get(agent.name, agent), cwd)

        return dataclasses.replace(
            ports,
            model=self._model,
            record=record_and_compare,
            mint=lambda: _next_id.get() or mint(),
            definitions={name: self.in_host(agent) for name, agent in ports.definitions.items()},
            own_tools=tools_of,
            hooks=lambda agent, gates, is_child: None,
            forwarding=None,
            programs=None,
            mcp_client=None,
            mcp_packages=None,
            approve=_approve,
            safety=None,
            decide=None,
            other_sessions=None,
            permissions=NO_PERMISSIONS,
            compaction=lambda window: None,
            processes=None,
            placement=None,
            results=None,
        )

    def in_host(self, agent: Agent) -> Agent:
        """Return a definition that needs no sandbox, no server and no repository; hooks do not run either."""
        self._originals[agent.name] = agent
        if agent.external is not None:
            return agent
        return agent.replace(policy=None, isolation=None, hooks=None, mcp=(), cache_ttl_seconds=None)

    def replace_tools(self, context: ToolUseContext) -> None:
        """Give a run recorded tools in place of its tools."""
        context.tools = tuple(stand_in(each, self) for each in context.tools)

    # ---- models

    def _model(self, model: str | BaseChatModel, effort: Effort | None = None, /) -> ModelPort:
        return ModelPort(self._ask, model if isinstance(model, str) else "recorded")

    async def _ask(self, context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Yield the next recorded reply of a run. Raises what the record has in place of a reply."""
        self.replace_tools(context)
        run = self.record.runs[context.run.id]
        outcome = run.outcomes.popleft() if run.outcomes else None
        if outcome is None:
            self.comparison.end_of_record(run, "one more request to the model")
            await wait_for_ever()
        elif isinstance(outcome, Refusal):
            if (event := outcome.event) is None:  # The record ends before it.
                raise BudgetExceeded(outcome.resource, asked=1, left=0, scope=context.run.path)
            raise BudgetExceeded(event.resource, asked=event.asked, left=event.left, scope=event.scope)
        elif isinstance(outcome, NoReply):
            error = run.result.error if run.result is not None else None
            if error is not None and error.type == _MODEL_FAILED and not run.outcomes:
                model, _, reason = error.message.partition(": ")
                raise ModelFailed(model, reason)
            if not run.is_complete:
                self.comparison.end_of_record(run, "the reply to a request of which there is no record")
            await wait_for_ever()
        else:
            reply = outcome.event
            await self.comparison.gate.wait_before(reply.seq)
            message = self._decoded(run, reply.message)
            context.last_usage = reply.usage
            if reply.usage is not None:
                context.spend(reply.usage)
            yield message

    def _decoded(self, run: RecordedRun, data: Mapping[str, Any]) -> AIMessage:
        """Return a recorded reply. The replay ends with InvalidValue if it is none."""
        try:
            message = decode(data)
            if isinstance(message, AIMessage):
                return message
            raise InvalidValue("message.type", message.type, "ai")
        except InvalidValue as problem:
            self.comparison.fail(InvalidValue("journal", run.path, f"replies as ramet records them ({problem})"))
            raise

    # ---- answers to calls of tools

    async def begin(self, run: str, call: str) -> None:
        """Wait until a call begins in the record; one that never began there begins at once."""
        starts = self.record.runs[run].call_starts[call]
        if starts:
            await self.comparison.gate.wait_before(starts.popleft())

    async def answer(self, run: str, call: str, tool: str) -> Mapping[str, Any]:
        """Wait until the answer comes in the record, and return its message."""
        record = self.record.runs[run]
        if not record.answers[call]:
            if not record.is_complete:
                self.comparison.end_of_record(record, f"the answer of {tool}, of which there is no record")
            await wait_for_ever()
        seq, message = record.answers[call].popleft()
        await self.comparison.gate.wait_before(seq)
        return message

    def was_moved(self, run: str, call: str) -> bool:
        """Return whether the child of a call went on in the background after a wait."""
        children = self.record.runs[run].children
        return any(each.was_moved for each in children if each.spawn.parent_call == call)


async def _approve(context: ToolUseContext, **_: Any) -> Approval:
    """Approve: what a person denied is in the recorded answer of the call."""
    return Approval(True)
