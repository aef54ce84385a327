"""The tool calls of one reply that went into a sandbox, counted from the reply: a guest is not asked what it ran.

A hold is taken for each call of a reply, as far as the budget goes, before the guest hears of it; the guest is told how
many it was granted, and refuses the others as the loop in the host would. A hold is settled when the call begins. What
is left when the next question comes, or the end, is settled as well, but for calls that the host itself said no to: a
guest may have run what it did not report. Of a reply that an earlier kernel had heard it is the guest who says to which
calls that one said no: nobody else is left who knows. So no more calls than the limit are ever granted, and an honest
guest is charged exactly what it ran; only one that was cut off pays for the calls that it had not come to.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from langchain_core.messages import AIMessage, ToolCall

from ramet.agent.context import calls_of
from ramet.core.budget import Amount, Hold
from ramet.core.errors import BudgetExceeded, ProtocolError
from ramet.core.events import ModelCharged
from ramet.core.outcome import Usage
from ramet.tools.context import ToolUseContext
from ramet.tools.dispatch import find_tool

#: Rounds of hooks for each call of a reply, and for the reply itself: a loop asks before and after a call, tells of a
#: question to a person, and asks before it ends or shortens its conversation.
ROUNDS = 4
_ONE = Amount(tool_calls=1)
_ONE_USED = Usage(tool_calls=1)
_NUMBER = re.compile(r"[1-9][0-9]{0,14}\Z")


class StartedCall(NamedTuple):
    """A call that may begin, and what it calls."""

    tool: str
    args: dict[str, Any]  # Any: what the model filled in


class PastCalls(NamedTuple):
    """What had become of the calls of a reply under another kernel, by their ids."""

    begun: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    answered: frozenset[str] = frozenset()


NO_CALLS_PAST = PastCalls()


class ToolCallLedger:
    """What may be, and was, done with the calls of one reply. Without a reply: nothing."""

    def __init__(
        self, context: ToolUseContext, step: str = "", reply: AIMessage | None = None, past: PastCalls = NO_CALLS_PAST
    ) -> None:
        self._context, self._step = context, step
        self._calls = {call["id"] or "": call for call in calls_of(reply)} if reply is not None else {}
        names = {call_id: tool_name(context, call["name"]) for call_id, call in self._calls.items()}
        self._is_heir = past is not NO_CALLS_PAST
        over = past.begun | past.refused | past.answered
        #: Calls that may run and have not begun, by id: the tools they are for.
        self._waiting = {
            key: name for key, name in names.items() if name and key not in over and not self._calls[key].get("error")
        }
        self._ended: set[str] = set()
        self._begun: dict[str, str] = {key: names[key] or "" for key in past.begun & names.keys()}
        self._unanswered = self._calls.keys() - past.answered
        self._intended: set[str] = set()  #: calls that the safety gate was asked about
        self._committed: set[str] = set()  #: of these, those that may run
        self.rounds = ROUNDS * (1 + len(self._calls))  #: of hooks that may still be asked until the next reply
        self._holds: list[Hold] = []
        self.refusal: BudgetExceeded | None = None  #: why some of them may not run
        try:
            for _ in self._waiting:
                self._holds.append(context.budget.reserve(_ONE))
        except BudgetExceeded as refusal:
            self.refusal = refusal
        self.granted = None if self.refusal is None else len(self._holds)  #: so many of them may run; None: all

    def call(self, call_id: str | None) -> ToolCall:
        """The call of that id. Raises ProtocolError for one that the reply does not have, or that is answered."""
        if call_id is None or call_id not in self._unanswered:
            raise ProtocolError(f"call {str(call_id)[:100]!r} is none that waits for an answer")
        return self._calls[call_id]

    def tool(self, call_id: str | None) -> str:
        """The name of the tool that a call is for, as far as there is one."""
        call = self.call(call_id)
        return tool_name(self._context, call["name"]) or call["name"][:200]

    def intend(self, call_id: str) -> ToolCall:
        """The safety gate is asked about a call. Raises ProtocolError for one that cannot run, or was asked about."""
        call = self.call(call_id)
        if call_id not in self._waiting or call_id in self._intended:
            raise ProtocolError(f"call {call_id[:100]!r} is not there to be voted on")
        self._intended.add(call_id)
        return call

    def commit(self, call_id: str) -> None:
        """The safety gate said yes."""
        self._committed.add(call_id)

    def begin(self, call_id: str | None) -> StartedCall:
        """A call begins. Raises ProtocolError for one that may not."""
        call = self.call(call_id)
        if self._context.safety is not None and call_id not in self._committed:
            raise ProtocolError(f"call {str(call_id)[:100]!r} began without a word of the safety gate")
        tool = self._waiting.pop(call_id or "", None)
        if tool is None or not self._holds:
            raise ProtocolError(f"call {str(call_id)[:100]!r} may not begin")
        self._begun[call_id or ""] = tool
        self._use(self._holds.pop())
        return StartedCall(tool, call["args"])

    def end(self, call_id: str | None, *, refused: bool = True) -> str:
        """A call was answered, whether it had begun or not; returns what it called. Raises ProtocolError.

        Where there is a safety gate, one that has not begun can only be `refused`. One that might have begun is charged
        now: whoever goes on knows it as one that is over.
        """
        call = self.call(call_id)
        self._check_begun(call_id, refused)
        if call_id in self._ended:
            raise ProtocolError(f"call {str(call_id)[:100]!r} ended twice")
        self._ended.add(call_id or "")
        if self._is_heir and refused:
            self.deny(call_id)
        if self._holds and call_id in self._waiting:
            del self._waiting[call_id]
            self._charge_untold(1)
        return self._begun.get(call_id or "", call["name"][:200])

    def answer(self, call_id: str | None, *, refused: bool = True) -> None:
        """The answer is in the conversation. Raises ProtocolError for one that nobody waits for, and like `end`."""
        self.call(call_id)
        self._check_begun(call_id, refused)
        self._unanswered.discard(call_id or "")

    def deny(self, call_id: str | None) -> None:
        """The host said no to a call: it is not charged."""
        self._waiting.pop(call_id or "", None)

    def _check_begun(self, call_id: str | None, refused: bool) -> None:
        """Behind a safety gate nothing has an output that was not let through."""
        if self._context.safety is not None and not refused and call_id not in self._begun:
            raise ProtocolError(f"call {str(call_id)[:100]!r} has an output, and never began")

    def close(self) -> None:
        """Nothing more of this reply will begin: settle what may have run, refund the rest. Idempotent."""
        untold = min(len(self._holds), len(self._waiting))
        self._waiting.clear()
        if untold:
            self._charge_untold(untold)
        for hold in self._holds:
            hold.refund()
        self._holds.clear()

    def _charge_untold(self, count: int) -> None:
        for _ in range(count):
            self._use(self._holds.pop())
        self._context.emit(ModelCharged, step_id=self._step, usage=Usage(tool_calls=count))

    def _use(self, hold: Hold) -> None:
        hold.settle(_ONE)
        self._context.spend(_ONE_USED)


def charge_aside(context: ToolUseContext, step: str, reply: AIMessage) -> None:
    """Count the calls of a reply that is no word of the conversation: whoever asked runs them, unseen.

    Raises BudgetExceeded, counting none, if they do not fit.
    """
    count = len(reply.tool_calls)
    if count:
        context.budget.reserve(Amount(tool_calls=count)).settle(Amount(tool_calls=count))
        context.spend(Usage(tool_calls=count))
        context.emit(ModelCharged, step_id=step, usage=Usage(tool_calls=count))


def step_number(context: ToolUseContext, step: str) -> int:
    """The number of a step that a guest made; the run's next ones are after it. Raises ProtocolError."""
    run, _, digits = step.rpartition(":")
    if run != context.run.id or not _NUMBER.match(digits):
        raise ProtocolError(f"step {step[:100]!r} is none of this run's")
    context.steps = max(context.steps, int(digits))
    return int(digits)


def tool_name(context: ToolUseContext, name: str) -> str | None:
    """The tool's own name where it may be called by an alias; None if the run has no such tool."""
    tool = find_tool({tool.name: tool for tool in context.tools}, name)
    return None if tool is None else tool.name
