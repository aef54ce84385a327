"""The host's copy of a sandboxed run's conversation: always equal to `run.context.history`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage

from ramet.agent.history.pairing import repair
from ramet.agent.loop import deliver_mail, record_message
from ramet.concurrency.mailbox import Mail
from ramet.core.errors import ProtocolError
from ramet.core.events import MessageRecorded
from ramet.core.ids import CallId
from ramet.models.messages import encode
from ramet.models.request_codec import SharedHistory, as_data, redact_for_guest
from ramet.spawn.mcp.interrupted_calls import calls_to_repeat
from ramet.spawn.run import Run

#: The number of bytes that a conversation may have as data; compaction makes room in it.
MAX_HISTORY = 32 * 1024 * 1024


class InitialTranscript(NamedTuple):
    """The messages that a guest receives first, as data."""

    system: list[dict[str, Any]]  # Any: JSON, as `ramet.models.messages` writes it
    history: list[dict[str, Any]]


class Mirror:
    """The conversation that host and guest both keep.

    A message is recorded when it arrives; requests refer to it by its place.
    """

    __slots__ = ("_mail", "_run", "_size", "_sizes", "history", "repeated_tools")

    def __init__(self, run: Run) -> None:
        self._run = run
        self.history = SharedHistory(())
        self._sizes: list[int] = []  #: sizes of the kept messages, as data
        self._size = 0
        self._mail: list[Mail] = []  #: mail read in this turn
        self.repeated_tools: dict[str, str] = {}  #: tools of calls that begin again in the process of this turn, by id

    def start_turn(self, messages: Sequence[BaseMessage]) -> InitialTranscript:
        """Return to the start of the turn, add `messages` and available mail, and return the whole as data.

        Calls that were in progress when a kernel ended are answered as interrupted, unless they begin again: then their
        answers come first, and mail is left for later. Raises ProtocolError if the conversation is too large for a
        guest.
        """
        context = self._run.context
        del context.history[self._run.turn_began_at :]  # An earlier attempt sent these to a guest that has ended.
        self.repeated_tools = self._find_repeated() if self._run.turn.resumes and not messages else {}
        self._repair()
        if self.repeated_tools:
            return self._guest_transcript()
        # A resumed turn that already has its answer ends with it: a note there would make the model answer again.
        is_answered = not messages and bool(context.history) and isinstance(context.history[-1], AIMessage)
        self._mail += context.mailbox.drain(notes=not is_answered)
        notes = [mail for mail in self._mail if mail.kind == "note"]
        for mail in notes:
            deliver_mail(context, mail)
        for message in messages:
            record_message(context, message)
        for mail in self._mail:
            if mail not in notes:
                deliver_mail(context, mail)
        return self._guest_transcript()

    def _guest_transcript(self) -> InitialTranscript:
        entries = self._initial_transcript()
        return InitialTranscript(entries.system, [redact_for_guest(each) for each in entries.history])

    def _find_repeated(self) -> dict[str, str]:
        run = self._run
        interrupted = run.sandbox.interrupted_calls
        calls = calls_to_repeat(run.context.history, interrupted, run.agent.mcp_servers)
        ids = [each["id"] or "" for each in calls]
        return {id: interrupted[id].tool for id in ids}

    def continue_here(self) -> None:
        """Let the next process of this turn begin with everything that is recorded now."""
        self._run.turn_began_at = len(self._run.context.history)
        self._mail.clear()

    def adopt(self) -> None:
        """Continue with a guest that received the conversation from another kernel.

        Raises ProtocolError if the conversation is too large for a guest.
        """
        self._initial_transcript()

    def _initial_transcript(self) -> InitialTranscript:
        context = self._run.context
        system, history = (
            [as_data(message) for message in messages] for messages in (context.system_messages, context.history)
        )
        self._replace_history([len(msgspec.json.encode(each)) for each in (*system, *history)])
        return InitialTranscript(system, history)

    def _repair(self) -> None:
        run, context = self._run, self._run.context
        known = {id(message) for message in context.history}
        context.history[:] = [
            each
            for each in repair(context.history)
            if id(each) in known or not isinstance(each, ToolMessage) or each.tool_call_id not in self.repeated_tools
        ]
        interrupted = [each for each in context.history if isinstance(each, ToolMessage) and id(each) not in known]
        # Before the answers are recorded: then no one looks for the children.
        if interrupted and context.tree is not None:
            context.tree.detach_calls(context, {CallId(message.tool_call_id) for message in interrupted})
        for message in interrupted:
            context.emit(MessageRecorded, message=encode(message), call_id=message.tool_call_id)
        run.turn_began_at = len(context.history)

    def record(self, message: BaseMessage, step: str | None = None) -> MessageRecorded:
        """Record a message and add it to the conversation.

        Raises ProtocolError if the conversation becomes too large.
        """
        run, context = self._run, self._run.context
        if isinstance(message, ToolMessage) and len(context.history) == run.turn_began_at:
            run.turn_began_at += 1  # An answer to a call of an earlier kernel: it stays answered there.
        recorded = record_message(context, message, step)
        assert isinstance(recorded, MessageRecorded)
        self._add(context.history[-1], len(msgspec.json.encode(recorded.message)))
        return recorded

    def add_mail(self, mail_id: str) -> None:
        """Add mail to the conversation, as it is in the mailbox.

        Raises ProtocolError if the mailbox does not hold this mail.
        """
        context = self._run.context
        mail = context.mailbox.remove(mail_id)
        if mail is None:
            raise ProtocolError(f"there is no unread mail {mail_id[:100]!r}")
        self._mail.append(mail)
        deliver_mail(context, mail)
        self._add(context.history[-1], len(mail.text))

    def compact(self, messages: object) -> tuple[int | dict[str, Any], ...]:
        """Apply a guest's compaction of the conversation; return it in the form of `Compacted.kept`.

        Raises ProtocolError if no compaction could have this result.
        """
        run, context = self._run, self._run.context
        system = len(context.system_messages)
        if not isinstance(messages, list) or len(messages) > len(context.history):
            raise ProtocolError("a compacted conversation must have fewer messages")
        if any(isinstance(each, int) and each < system for each in messages):
            raise ProtocolError("a system message is not part of the conversation")
        history = self.history.decode_messages(messages)
        new_messages = [message for each, message in zip(messages, history, strict=True) if not isinstance(each, int)]
        if not all(isinstance(message, HumanMessage | ToolMessage) for message in new_messages):
            raise ProtocolError("a compacted conversation must not hold a new reply")
        sizes = [self._sizes[each] if isinstance(each, int) else len(msgspec.json.encode(each)) for each in messages]
        if sum(sizes) > sum(self._sizes[system:]):
            raise ProtocolError("a compacted conversation must be shorter")
        turn_messages = [
            at for at, each in enumerate(messages) if isinstance(each, int) and each >= system + run.turn_began_at
        ]
        run.turn_began_at = turn_messages[0] if turn_messages else len(history)
        context.history[:] = history
        self._replace_history([*self._sizes[:system], *sizes])
        return tuple(
            each - system if isinstance(each, int) else encode(message)
            for each, message in zip(messages, history, strict=True)
        )

    def _add(self, message: BaseMessage, size: int) -> None:
        at = self.history.add(message)
        self._sizes.insert(at, size)
        history, place = self._run.context.history, at - len(self._run.context.system_messages)
        if place < len(history) - 1:  # An answer to a call before one that was answered earlier.
            history.insert(place, history.pop())
        self._size += size
        self._check()

    def _replace_history(self, sizes: list[int]) -> None:
        context = self._run.context
        self.history = SharedHistory([*context.system_messages, *context.history])
        self._sizes, self._size = sizes, sum(sizes)
        self._check()

    def _check(self) -> None:
        if self._size > MAX_HISTORY:
            raise ProtocolError(f"the conversation has {self._size} bytes; at most {MAX_HISTORY} are kept in a sandbox")
