"""The host of a program, reached by the run's channel."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from ramet.core.errors import InvalidValue, RametError
from ramet.core.events import PlanStep
from ramet.guest.async_channel import RawAnswer
from ramet.guest.client import load_checkpoint, save_checkpoint
from ramet.guest.external.program_host import CallStatus, Permission, SubAgentState
from ramet.guest.thread_channel import ThreadChannel
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol import guest_to_host
from ramet.wire.guest_protocol.answer_data import ApprovalReply
from ramet.wire.guest_protocol.guest_to_host import GuestMessage, Request
from ramet.wire.guest_protocol.host_to_guest import Answer, HostMessage, IncomingMail

T = TypeVar("T")
#: Characters of a name or an id, of a preview, and of a part of a reply; bytes of the arguments of a call, as JSON.
MAX_NAME, MAX_PREVIEW, MAX_TEXT, MAX_ARGUMENTS = 200, 2_000, 64 * 1024, 256 * 1024
MAX_STEPS = 100
#: Characters of a session's id, and the version of the checkpoint that holds it.
MAX_SESSION, _VERSION = 1_000, 1
#: Requests that wait for answers at the same time, persons included.
_MAX_WAITING: Final = 40


class ChannelHost:
    """A `ProgramHost` over the channel of this sandbox. Its methods must be called in one event loop."""

    def __init__(self, channel: ThreadChannel) -> None:
        self._channel = channel
        self._mails: list[tuple[str, str]] = []
        self._asking = ThreadPoolExecutor(_MAX_WAITING, "ramet-asking")
        self._sending = ThreadPoolExecutor(1, "ramet-sending")  #: messages without an answer, in order
        channel.on_mail = self._receive_mail

    def close(self) -> None:
        """Stop to receive mail. Threads that wait for an answer end with it."""
        self._channel.on_mail = None
        self._asking.shutdown(wait=False, cancel_futures=True)
        self._sending.shutdown(wait=True)

    async def start_call(self, call_id: str, tool: str, args: dict[str, Any]) -> None:
        """Record that a call begins, and count it. Raises BudgetExceeded beyond a limit."""
        fields = {"call_id": call_id[:MAX_NAME], "tool": tool[:MAX_NAME], "args": _shortened(args)}
        await self._ask(guest_to_host.StartToolCall, **fields)

    async def ask_permission(self, call_id: str, tool: str, args: dict[str, Any]) -> Permission:
        """Ask whether a call may be done. Arguments that nobody could read in full are refused here.

        If the wait is cancelled, the question is withdrawn: the host asks nobody any more.
        """
        if _size(args) > MAX_ARGUMENTS:
            return Permission(False, f"its arguments are longer than {MAX_ARGUMENTS} bytes")
        fields = {"call_id": call_id[:MAX_NAME], "tool": tool[:MAX_NAME], "args": args}
        answer = await self._ask_until_withdrawn(guest_to_host.AskPermission, **fields)
        return Permission(answer.allowed, answer.reason)

    async def end_call(self, call_id: str, status: CallStatus, preview: str = "") -> None:
        """Record the end of a call that began."""
        await self._post(
            guest_to_host.EndToolCall(call_id=call_id[:MAX_NAME], status=status, preview=preview[:MAX_PREVIEW])
        )

    async def report_plan(self, steps: Sequence[PlanStep]) -> None:
        """Record the plan of the program."""
        kept = (PlanStep(text=each.text[:MAX_NAME], status=each.status[:MAX_NAME]) for each in steps[:MAX_STEPS])
        await self._post(guest_to_host.ReportPlan(steps=tuple(kept)))

    async def report_sub_agent(self, sub_agent: str, title: str, state: SubAgentState) -> None:
        """Record the state of an agent that the program runs by itself."""
        await self._post(
            guest_to_host.ReportSubAgent(sub_agent=sub_agent[:MAX_NAME], title=title[:MAX_NAME], state=state)
        )

    async def report_text(self, text: str) -> None:
        """Pass on a part of the reply."""
        for start in range(0, len(text), MAX_TEXT):
            await self._post(guest_to_host.ReportText(text=text[start : start + MAX_TEXT]))

    async def load_session(self) -> str | None:
        """Return the id of the program's session, if an earlier process of this run has saved one."""
        session: str | None = await self._run(lambda: load_checkpoint(None, returns=str, version=_VERSION))
        return session

    async def save_session(self, session: str) -> None:
        """Save the id of the program's session. Raises InvalidValue for one that is too long."""
        if len(session) > MAX_SESSION:
            raise InvalidValue("session", session, f"an id of at most {MAX_SESSION} characters")
        await self._run(lambda: save_checkpoint(session, _VERSION))

    async def take_prompt(self) -> str | None:
        """Return the mail that has arrived since, as the next prompt; None if there is none."""
        mails, self._mails = self._mails, []
        for mail_id, _ in mails:
            await self._post(guest_to_host.AcceptMail(mail_id=mail_id))
        return "\n\n".join(text for _, text in mails) or None

    def _receive_mail(self, mail: IncomingMail, body: bytes) -> None:
        self._mails.append((mail.mail_id, body.decode()))  # The host bounds the mail that waits.

    async def _ask(self, kind: type[Request], **fields: Any) -> None:
        await self._run(lambda: self._channel.ask(kind, **fields))

    async def _ask_until_withdrawn(self, kind: type[Request], **fields: Any) -> ApprovalReply:
        loop = asyncio.get_running_loop()
        received: asyncio.Future[RawAnswer] = loop.create_future()

        def resolve(message: HostMessage | BaseException, body: bytes) -> None:
            if received.done():
                return
            if isinstance(message, BaseException):
                received.set_exception(message)
            elif isinstance(message, Answer) and message.error is not None:
                received.set_exception(decode_error(message.error, message.fields))
            elif isinstance(message, Answer):
                received.set_result(RawAnswer(message.data, body))

        def receive(message: HostMessage | BaseException, body: bytes) -> None:
            with contextlib.suppress(RuntimeError):  # The program has ended, and with it the loop.
                loop.call_soon_threadsafe(resolve, message, body)

        sent = self._asking.submit(lambda: self._channel.open_stream(kind, receive, **fields))
        try:
            await asyncio.wrap_future(sent)
            return (await received).as_(ApprovalReply)
        except asyncio.CancelledError:
            sent.add_done_callback(self._withdraw)
            raise

    def _withdraw(self, sent: Future[int]) -> None:
        """Withdraw a question that was sent. It is called in any thread, and does not wait."""

        def post(number: int) -> None:
            with contextlib.suppress(RametError):  # The host has left.
                self._channel.post(guest_to_host.ResetStream(request=number))

        if not sent.cancelled() and sent.exception() is None:
            with contextlib.suppress(RuntimeError):  # The program has ended, and its questions end with its process.
                self._sending.submit(post, sent.result())

    async def _post(self, message: GuestMessage) -> None:
        """Send a message; wait until the host takes it, so that a program is not read faster than its host reads."""

        def post() -> None:
            with contextlib.suppress(RametError):  # The host has left: the next request says so.
                self._channel.post(message)

        await asyncio.get_running_loop().run_in_executor(self._sending, post)

    async def _run(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._asking, work)


def _size(args: dict[str, Any]) -> int:
    return len(json.dumps(args))


def _shortened(args: dict[str, Any]) -> dict[str, Any]:
    if _size(args) <= MAX_ARGUMENTS:
        return args
    return {"text": json.dumps(args)[:MAX_PREVIEW], "note": f"cut: longer than {MAX_ARGUMENTS} bytes"}
