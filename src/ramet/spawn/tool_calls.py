"""The tool calls of a reply inside a sandbox, counted by the host from the reply itself.

The host does not ask a guest what it ran. Before the guest receives a reply, the host takes a hold for each call, as
far as the budget allows. The guest is told how many calls were granted, and refuses the others as the loop in the host
would. A hold is settled when its call begins. At the next request, or at the end, the remaining holds are settled too,
because a guest may have run calls that it did not report; calls that the host itself refused are excluded. For a reply
that an earlier kernel received, the guest reports which calls that kernel refused: no one else knows. So the limit is
never exceeded, and an honest guest is charged exactly for the calls that it ran. Only a guest that was cut off pays for
calls that it had not started.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, ToolCall

from ramet.agent.context import calls_of
from ramet.core.budget import Hold
from ramet.core.errors import BudgetExceeded, Denied, ProtocolError
from ramet.core.events import ModelCharged
from ramet.core.limits import Amount
from ramet.core.outcome import Usage
from ramet.tools.context import ToolUseContext
from ramet.tools.dispatch import find_tool

#: Rounds of hooks for each call of a reply, and for the reply itself: a loop asks before and after a call, reports a
#: question to a person, and asks before it ends or shortens its conversation.
ROUNDS = 4
_ONE_CALL = Amount(tool_calls=1)
_ONE_CALL_USED = Usage(tool_calls=1)
_NUMBER = re.compile(r"[1-9][0-9]{0,14}\Z")


class StartedCall(NamedTuple):
    """A call that may begin, with its tool and arguments."""

    tool: str
    args: dict[str, Any]  # Any: the arguments that the model wrote


class InterruptedCall(NamedTuple):
    """A call of an earlier process that had begun, was repeatable, and has no recorded answer."""

    tool: str
    args: dict[str, Any]  #: as the model wrote them: hooks see and change these
    step: str  #: of the reply that has the call


class PastCalls(NamedTuple):
    """The fate of the calls of a reply under another kernel, by their ids."""

    started_ids: frozenset[str] = frozenset()
    refused_ids: frozenset[str] = frozenset()
    answered_ids: frozenset[str] = frozenset()
    repeated_tools: Mapping[str, str] = MappingProxyType({})  #: tools of calls that begin again in a new process


NO_PAST_CALLS = PastCalls()


class ToolCallLedger:
    """The ledger of the calls of one reply: which may run and which have run.

    Without a reply, no call may run.
    """

    def __init__(
        self, context: ToolUseContext, step: str = "", reply: AIMessage | None = None, past: PastCalls = NO_PAST_CALLS
    ) -> None:
        self._context, self._step = context, step
        self._calls = {call["id"] or "": call for call in calls_of(reply)} if reply is not None else {}
        names = {call_id: tool_name(context, call["name"]) for call_id, call in self._calls.items()}
        names |= past.repeated_tools  # Their servers have not listed them yet.
        self._is_resumed = past is not NO_PAST_CALLS and not past.repeated_tools
        ended_ids = past.started_ids | past.refused_ids | past.answered_ids
        #: Calls that may run and have not begun: tool name by id.
        self._waiting_tools = {
            key: name
            for key, name in names.items()
            if name and key not in ended_ids and not self._calls[key].get("error")
        }
        self._ended_ids: set[str] = set()
        self._running_tools: dict[str, str] = {key: names[key] or "" for key in past.started_ids & names.keys()}
        self._unanswered_ids = self._calls.keys() - past.answered_ids
        self._host_work_ids: set[str] = set()  #: calls whose work the host has begun
        self._proposed_ids: set[str] = set()  #: calls that the safety gate was asked about
        self._allowed_ids: set[str] = set()  #: of these, the calls that may run
        self.rounds = ROUNDS * (1 + len(self._calls))  #: rounds of hooks that may still be asked until the next reply
        self._holds: list[Hold] = []
        self.refusal: BudgetExceeded | None = None  #: why some of the calls may not run
        self.granted_count: int | None = None  #: number that may run; None: all
        self._reserve()

    def _reserve(self) -> None:
        """Reserve the calls one by one, as far as they fit."""
        self.refusal = None
        try:
            for _ in self._waiting_tools:
                self._holds.append(self._context.budget.reserve(_ONE_CALL))
                self._holds[-1].keep()  # Its call may follow another one that waits for a run.
        except BudgetExceeded as refusal:
            self.refusal = refusal
        self.granted_count = None if self.refusal is None else len(self._holds)

    def _refund(self) -> None:
        _refund_all(self._holds)
        self._holds.clear()

    async def wait_to_run(self) -> None:
        """Wait while a person pauses the run, and until all calls may run, if a limit that pauses refused some.

        Nothing is held meanwhile. At a limit that pauses they are reserved together; a limit that ends the run leaves
        those that it granted.
        """
        context, count = self._context, len(self._waiting_tools)
        while self._waiting_tools and context.is_paused:
            self._refund()
            await context.wait_unpaused()
            self._reserve()
        if self.refusal is None or context.wait_at_limit is None:
            return

        def reserve_all() -> list[Hold]:
            context.budget.reserve(Amount(tool_calls=count)).refund()
            holds = [context.budget.reserve(_ONE_CALL) for _ in range(count)]
            for hold in holds:
                hold.keep()
            return holds

        owner = context.budget.owner(self.refusal.resource)
        if owner is None or not owner.pauses:
            return
        self._refund()
        try:
            self._holds = await context.reserve(reserve_all, _refund_all)
        except BudgetExceeded as refusal:
            self.refusal, self.granted_count = refusal, 0
        else:
            self.refusal = self.granted_count = None

    def call(self, call_id: str | None) -> ToolCall:
        """Return the call of this id.

        Raises ProtocolError if the reply has no such call, or if the call is answered.
        """
        if call_id is None or call_id not in self._unanswered_ids:
            raise ProtocolError(f"call {str(call_id)[:100]!r} does not wait for an answer")
        return self._calls[call_id]

    def tool(self, call_id: str | None) -> str:
        """Return the name of the tool of a call, or the called name if there is no such tool."""
        call = self.call(call_id)
        return tool_name(self._context, call["name"]) or call["name"][:200]

    def propose(self, call_id: str) -> ToolCall:
        """Record that the safety gate is asked about a call.

        Raises ProtocolError if the call cannot run, or was asked about before.
        """
        call = self.call(call_id)
        if call_id not in self._waiting_tools or call_id in self._proposed_ids:
            raise ProtocolError(f"there is no call {call_id[:100]!r} to vote on")
        self._proposed_ids.add(call_id)
        return call

    def commit(self, call_id: str) -> None:
        """Record that the safety gate allowed a call."""
        self._allowed_ids.add(call_id)

    def begin(self, call_id: str | None) -> StartedCall:
        """Record that a call begins.

        Raises ProtocolError if it may not begin.
        """
        call = self.call(call_id)
        if self._context.safety is not None and call_id not in self._allowed_ids:
            raise ProtocolError(f"call {str(call_id)[:100]!r} began before the safety gate decided")
        tool = self._waiting_tools.pop(call_id or "", None)
        if tool is None or not self._holds:
            raise ProtocolError(f"call {str(call_id)[:100]!r} may not begin")
        self._running_tools[call_id or ""] = tool
        self._use(self._holds.pop())
        return StartedCall(tool, call["args"])

    def take_host_work(self, call_id: str, tool: str) -> dict[str, Any]:
        """Return the arguments of a call whose work the host does, as the gates have left them; once for each call.

        Raises Denied unless a call of this tool has begun, and has not ended.
        """
        is_running = self._running_tools.get(call_id) == tool and call_id not in self._ended_ids
        if not is_running or call_id in self._host_work_ids:
            raise Denied(tool[:200], "no call of it has begun, or its work was done")
        self._host_work_ids.add(call_id)
        return self._calls[call_id]["args"]

    def end(self, call_id: str | None, *, refused: bool = True) -> str:
        """Record that a call was answered, whether it had begun or not; return the name of its tool.

        Raises ProtocolError if the call is unknown, ended twice, or has an output without having begun. With a safety
        gate, a call that has not begun can only be `refused`. A call that might have begun is charged now: a process
        that resumes the run treats it as ended.
        """
        call = self.call(call_id)
        self._check_begun(call_id, refused)
        if call_id in self._ended_ids:
            raise ProtocolError(f"call {str(call_id)[:100]!r} ended twice")
        self._ended_ids.add(call_id or "")
        if self._is_resumed and refused:
            self.deny(call_id)
        if self._holds and call_id in self._waiting_tools:
            del self._waiting_tools[call_id]
            self._charge_unreported(1)
        return self._running_tools.get(call_id or "", call["name"][:200])

    def answer(self, call_id: str | None, *, refused: bool = True) -> None:
        """Record that the answer of a call is in the conversation.

        Raises ProtocolError if no answer is expected, and as `end` does.
        """
        self.call(call_id)
        self._check_begun(call_id, refused)
        self._unanswered_ids.discard(call_id or "")

    def deny(self, call_id: str | None) -> None:
        """Record that the host refused a call; the call is not charged."""
        self._waiting_tools.pop(call_id or "", None)

    def _check_begun(self, call_id: str | None, refused: bool) -> None:
        """Check that no call has an output that a safety gate did not allow.

        Raises ProtocolError.
        """
        if self._context.safety is not None and not refused and call_id not in self._running_tools:
            raise ProtocolError(f"call {str(call_id)[:100]!r} has an output, and never began")

    def close(self) -> None:
        """Settle the calls that may have run and refund the rest: no more calls of this reply will begin.

        Idempotent.
        """
        unreported = min(len(self._holds), len(self._waiting_tools))
        self._waiting_tools.clear()
        if unreported:
            self._charge_unreported(unreported)
        self._refund()

    def _charge_unreported(self, count: int) -> None:
        for _ in range(count):
            self._use(self._holds.pop())
        self._context.emit(ModelCharged, step_id=self._step, usage=Usage(tool_calls=count))

    def _use(self, hold: Hold) -> None:
        hold.settle(_ONE_CALL)
        self._context.spend(_ONE_CALL_USED)


def _refund_all(holds: list[Hold]) -> None:
    for hold in holds:
        hold.refund()


async def charge_aside(context: ToolUseContext, step: str, reply: AIMessage) -> None:
    """Charge the calls of a reply that is not part of the conversation; the asking code runs them unseen.

    Raises BudgetExceeded, counting none, if they do not fit.
    """
    count = len(reply.tool_calls)
    if count:
        amount = Amount(tool_calls=count)
        (await context.reserve(lambda: context.budget.reserve(amount), Hold.refund)).settle(amount)
        context.spend(Usage(tool_calls=count))
        context.emit(ModelCharged, step_id=step, usage=Usage(tool_calls=count))


def step_number(context: ToolUseContext, step: str) -> int:
    """Return the number of a step that a guest made; the next steps of the run follow it.

    Raises ProtocolError if the step is not one of this run.
    """
    run, _, digits = step.rpartition(":")
    if run != context.run.id or not _NUMBER.match(digits):
        raise ProtocolError(f"step {step[:100]!r} does not belong to this run")
    context.steps = max(context.steps, int(digits))
    return int(digits)


def tool_name(context: ToolUseContext, name: str) -> str | None:
    """Return the tool's own name for a name or an alias; None if the run has no such tool."""
    tool = find_tool({tool.name: tool for tool in context.tools}, name)
    return None if tool is None else tool.name
