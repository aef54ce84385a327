"""The events that a guest reports of its conversation.

They are the few events that only its loop can know; here they are checked and stamped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from langchain_core.messages import HumanMessage, ToolMessage

from ramet.core import events
from ramet.core.errors import BudgetExceeded, InvalidValue, ProtocolError
from ramet.core.events import BudgetRefused, Compacted, MailDelivered, MessageRecorded, Notice, ToolEnded, ToolStarted
from ramet.models.request_codec import bounded_json, untrusted_message
from ramet.spawn.masking import masked_error, masked_failure, masked_text
from ramet.spawn.mcp.tool_list import is_repeatable
from ramet.spawn.run import Run
from ramet.spawn.sandbox.transcript import Mirror
from ramet.spawn.tool_calls import ToolCallLedger, step_number
from ramet.wire.guest_protocol.guest_to_host import Record

#: Bytes of one record, and of all records of one conversation; a larger transcript is refused. Memory holds less:
#: `ramet.host.journal.recent_events` bounds a tree's events there, `ramet.spawn.sandbox.transcript` the conversation.
MAX_RECORD, MAX_RECORDED = 8 * 1024 * 1024, 256 * 1024 * 1024
MAX_RECORDS = 100_000
#: Characters of a notice, and of the shown beginning of a result.
MAX_SHOWN = 2_000
MAX_SUMMARY = 64 * 1024

_STATUSES = frozenset({"ok", "error", "denied", "cancelled"})


class Records:
    """The receiver of one conversation's records, in order."""

    __slots__ = ("_bytes", "_context", "_count", "_last", "_run", "_transcript", "objections")

    def __init__(self, run: Run, mirror: Mirror) -> None:
        self._run, self._context, self._transcript = run, run.context, mirror
        self._bytes = self._count = 0
        self._last = 0  #: number of the newest recorded one
        self.objections = 0  #: messages of the loop that told the model to go on instead of ending

    def start_after(self, number: int = 0) -> None:
        """Start receiving from a guest that has sent `number` records to another kernel."""
        self._last = number

    def record(
        self,
        report: Record,
        body: bytes,
        calls: ToolCallLedger,
        refusal: BudgetExceeded | None,
        *,
        lasts: bool,
        content: Sequence[Any] | None = None,
    ) -> None:
        """Record an event, once. A message is recorded with `content` in place of its own, if that was stored.

        Raises ProtocolError if a guest may not report the event. `calls` are the calls of the newest reply, `refusal`
        is the last refusal of the host. If the guest `lasts` longer than its kernel, the record holds the number of the
        report.
        """
        event, rest = self._read(body)
        if report.number <= self._last:
            return  # A repeated record.
        if report.number != self._last + 1:
            raise ProtocolError(f"record {report.number} came after record {self._last}")
        self._last = report.number
        with self._number_events(report.number if lasts else 0):
            self._record_event(event, rest, calls, refusal, content)

    @contextmanager
    def _number_events(self, number: int) -> Iterator[None]:
        """Stamp the events that are recorded in this context with a number."""
        record = self._context.record
        if number:
            self._context.record = lambda event: record(msgspec.structs.replace(event, told=number))
        try:
            yield
        finally:
            self._context.record = record

    def _record_event(
        self,
        event: events.Event,
        rest: bytes,
        calls: ToolCallLedger,
        refusal: BudgetExceeded | None,
        content: Sequence[Any] | None,
    ) -> None:
        match event:
            case MessageRecorded():
                self._record_message(event, calls, content)
            case ToolStarted():
                step_number(self._context, event.step_id)
                started = calls.begin(event.call_id)
                self._run.sandbox.interrupted_calls.pop(event.call_id or "", None)  # It begins once in this kernel.
                self._context.emit(
                    ToolStarted,
                    call_id=event.call_id,
                    tool=started.tool,
                    step_id=event.step_id,
                    args=started.args,
                    repeatable=is_repeatable(self._context.tools, started.tool),
                )
            case ToolEnded():
                if event.status not in _STATUSES:
                    raise ProtocolError(f"a call ended as {event.status[:100]!r}")
                self._context.emit(
                    ToolEnded,
                    call_id=event.call_id,
                    tool=calls.end(event.call_id, refused=event.status in ("error", "denied")),
                    status=event.status,
                    preview=masked_text(self._run, event.preview, MAX_SHOWN),
                    elapsed_ms=event.elapsed_ms,
                )
            case MailDelivered():
                self._transcript.add_mail(event.mail_id)
            case Compacted():
                self._record_compaction(event, rest)
            case BudgetRefused():
                if refusal is None:
                    raise ProtocolError("no budget refused a request of this run")
                self._context.record_refusal(refusal)
            case Notice():
                text = masked_text(self._run, event.text, MAX_SHOWN)
                self._context.emit(Notice, text=text, error=masked_error(self._run, event.error, MAX_SHOWN))
            case _:
                raise ProtocolError(f"{type(event).__name__} is not an event that a guest may report")

    def _read(self, body: bytes) -> tuple[events.Event, bytes]:
        self._count += 1
        self._bytes += len(body)
        if len(body) > MAX_RECORD or self._bytes > MAX_RECORDED or self._count > MAX_RECORDS:
            raise ProtocolError(f"record {self._count}, of {len(body)} bytes, makes {self._bytes} in all: too much")
        line, _, rest = body.partition(b"\n")
        bounded_json(line)
        try:
            return events.decode(line), rest
        except InvalidValue as problem:
            raise ProtocolError(str(problem)) from None

    def _record_message(self, event: MessageRecorded, calls: ToolCallLedger, content: Sequence[Any] | None) -> None:
        """Record the result of a tool, or a message of the loop to the model.

        A model's reply was recorded when it was given.
        """
        message = untrusted_message(event.message)
        if content is not None:  # Of the same message: its files are stored.
            message = message.model_copy(update={"content": list(content)})
        if isinstance(message, ToolMessage):
            calls.answer(message.tool_call_id, refused=message.status == "error")
            message = masked_failure(self._run, message)
        elif not isinstance(message, HumanMessage):
            raise ProtocolError(f"a guest may not record a message of type {message.type}")
        else:
            self.objections += 1
        self._transcript.record(message)

    def _record_compaction(self, event: Compacted, rest: bytes) -> None:
        before = len(self._context.history)
        kept_entries = self._transcript.compact(bounded_json(rest))
        self._context.emit(
            Compacted,
            before_messages=before,
            after_messages=len(self._context.history),
            before_tokens=event.before_tokens,
            after_tokens=event.after_tokens,
            summary=event.summary[:MAX_SUMMARY],
            kept=kept_entries if self._context.durable is not None else (),
        )
