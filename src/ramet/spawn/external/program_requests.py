"""The messages of a program with its own loop: its calls, its questions, its plan and its own sub-agents.

The program is hostile. All of it is its own word: recorded for people, masked and bounded, and believed in nothing that
costs or decides. Its model requests are bound elsewhere, by what its provider reports (`ramet.spawn.forwarding`).
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any, Final, NamedTuple

import msgspec
from langchain_core.messages import AIMessageChunk

from ramet.agent.loop import deliver_mail
from ramet.core.budget import Hold
from ramet.core.errors import Denied, ProtocolError
from ramet.core.events import PlanStep, PlanUpdated, SubAgentReported, ToolEnded, ToolStarted
from ramet.core.ids import CallId, step_id
from ramet.core.limits import Amount
from ramet.core.outcome import Usage
from ramet.isolation.masking.secret_forms import mask_text
from ramet.spawn.masking import masked_text, private_forms
from ramet.spawn.run import Run
from ramet.tools.foreign_calls import pass_gates
from ramet.wire.guest_protocol import guest_to_host
from ramet.wire.guest_protocol.answer_data import ApprovalReply
from ramet.wire.guest_protocol.guest_to_host import GuestMessage

#: Calls of one program that have not ended, and that wait for an answer; calls and reports in all.
MAX_OPEN_CALLS: Final = 256
MAX_QUESTIONS: Final = 32
MAX_REPORTS: Final = 200_000
#: Characters of a preview, and of the reply that is held for a turn that ends early.
MAX_PREVIEW, MAX_REPLY = 2_000, 1024 * 1024
_ONE_CALL = Amount(tool_calls=1)


class _OpenCall(NamedTuple):
    """A call that has not ended."""

    id: CallId
    tool: str
    started_s: float


class ProgramRequests:
    """The requests and reports of the program in one sandbox.

    The id of a call is made of its tool and arguments, not the program's own, which is another one in each process.
    A program that goes on in another process, and asks its open question again, so gets the answer to it.
    """

    def __init__(self, run: Run) -> None:
        self._run, self._context = run, run.context
        self._open: dict[str, _OpenCall] = {}  #: by the program's own id
        self._questions: dict[int, asyncio.Task[Any]] = {}  #: that wait for an answer, by request
        self._report_count = self._reply_size = 0
        self._plan: tuple[PlanStep, ...] = ()

    async def start_call(self, request: guest_to_host.StartToolCall) -> None:
        """Count and record a call. Raises BudgetExceeded beyond a limit, where that ends the run."""
        self._count_report()
        if request.call_id in self._open:
            raise ProtocolError(f"call {request.call_id[:100]!r} has begun already")
        if len(self._open) >= MAX_OPEN_CALLS:
            raise ProtocolError(f"more than {MAX_OPEN_CALLS} calls have not ended")
        context, args = self._context, self._masked(request.args)
        call = _OpenCall(self._new_id(request.tool, args), request.tool, context.clock.monotonic())
        self._open[request.call_id] = call
        try:
            hold = await context.reserve(lambda: context.budget.reserve(_ONE_CALL), Hold.refund)
        except BaseException:
            self._open.pop(request.call_id, None)
            raise
        context.emit(
            ToolStarted,
            call_id=call.id,
            tool=masked_text(self._run, request.tool),
            step_id=context.next_step(),
            args=args,
        )
        hold.settle(_ONE_CALL)  # From here on the call counts, however it ends.
        context.spend(Usage(tool_calls=1))

    async def ask_permission(self, request: guest_to_host.AskPermission) -> ApprovalReply:
        """Ask hooks, permission rules, a person and the safety gate about a call. The program is never believed.

        Raises CancelledError if the program withdraws the question: nothing is answered then.
        """
        self._count_report()
        if len(self._questions) >= MAX_QUESTIONS:
            raise ProtocolError(f"more than {MAX_QUESTIONS} questions wait for an answer")
        asking = asyncio.current_task()
        assert asking is not None, "each request has a task of its own"
        call, args = self._open.get(request.call_id), self._masked(request.args)
        question = f"{self._run.agent.name} asks whether it may use {request.tool}"
        self._questions[request.id] = asking
        try:
            await pass_gates(
                self._context,
                call.id if call is not None else self._new_id(request.tool, args),
                masked_text(self._run, request.tool),
                args,
                question=masked_text(self._run, question),
                records_denial=False,
            )
        except Denied as denial:
            return ApprovalReply(allowed=False, reason=str(denial))
        finally:
            self._questions.pop(request.id, None)
        return ApprovalReply(allowed=True)

    def withdraw(self, request: int) -> bool:
        """Withdraw a question whose turn has ended; return False if no such question waits."""
        asking = self._questions.pop(request, None)
        return asking is not None and asking.cancel()

    def receive(self, message: GuestMessage) -> bool:
        """Record what a program reports; return False for a message of another kind. Raises ProtocolError."""
        match message:
            case guest_to_host.EndToolCall():
                self._end_call(message)
            case guest_to_host.ReportPlan():
                self._report_plan(message)
            case guest_to_host.ReportSubAgent():
                self._context.emit(
                    SubAgentReported,
                    sub_agent=masked_text(self._run, message.sub_agent),
                    title=masked_text(self._run, message.title),
                    state=message.state,
                )
            case guest_to_host.ReportText():
                self._report_text(message.text)
            case guest_to_host.AcceptMail():
                if (mail := self._context.mailbox.remove(message.mail_id)) is None:
                    raise ProtocolError(f"no mail {message.mail_id[:100]!r} waits for it")
                deliver_mail(self._context, mail)
            case _:
                return False
        self._count_report()
        return True

    def close(self) -> None:
        """Record the end of the calls and questions that the program left open."""
        if self._context.withdraw_restored is not None:
            self._context.withdraw_restored(self._run.info.id)
        for call in self._open.values():
            self._emit_end(call, "cancelled", "")
        self._open.clear()

    def _end_call(self, message: guest_to_host.EndToolCall) -> None:
        call = self._open.pop(message.call_id, None)
        if call is None:
            raise ProtocolError(f"call {message.call_id[:100]!r} has not begun")
        self._emit_end(call, message.status, masked_text(self._run, message.preview, MAX_PREVIEW))

    def _emit_end(self, call: _OpenCall, status: str, preview: str) -> None:
        self._context.emit(
            ToolEnded,
            call_id=call.id,
            tool=masked_text(self._run, call.tool),
            status=status,
            preview=preview,
            elapsed_ms=round((self._context.clock.monotonic() - call.started_s) * 1000, 3),
        )

    def _new_id(self, tool: str, args: dict[str, Any]) -> CallId:
        digest = hashlib.sha256(msgspec.json.encode([tool, args], order="deterministic")).hexdigest()[:16]
        taken, count = {each.id for each in self._open.values()}, 0
        while (id := CallId(f"call-{digest}" if not count else f"call-{digest}-{count}")) in taken:
            count += 1
        return id

    def _report_plan(self, message: guest_to_host.ReportPlan) -> None:
        forms = private_forms(self._run)
        steps = tuple(
            PlanStep(text=mask_text(each.text, forms), status=mask_text(each.status, forms)) for each in message.steps
        )
        if steps != self._plan:
            self._plan = steps
            self._context.emit(PlanUpdated, steps=steps)

    def _report_text(self, text: str) -> None:
        context, activity = self._context, self._run.activity
        self._reply_size += len(text)
        if self._reply_size <= MAX_REPLY:
            chunk = AIMessageChunk(content=masked_text(self._run, text))
            activity.feed(chunk, step_id(context.run.id, context.steps))
        else:
            activity.on_chunk()

    def _count_report(self) -> None:
        self._report_count += 1
        if self._report_count > MAX_REPORTS:
            raise ProtocolError(f"more than {MAX_REPORTS} calls and reports")

    def _masked(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return arguments without private values: a program knows those of its sandbox."""
        forms = private_forms(self._run)
        if not forms:
            return args
        masked = mask_text(msgspec.json.encode(args).decode(), forms)
        try:
            data: dict[str, Any] = msgspec.json.decode(masked, type=dict[str, Any])
        except msgspec.DecodeError:  # The mask took a part of the JSON itself away.
            return {"text": masked}
        return data
