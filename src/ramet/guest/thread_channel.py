"""The channel for an agent's threads: requests answered in any order, and the ends of children."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from ramet.core.errors import Aborted, InvalidValue, ProtocolError, RametError
from ramet.guest.async_channel import AsyncChannel, End, RawAnswer
from ramet.guest.channel import Channel
from ramet.wire.error_codec import decode_error
from ramet.wire.guest_protocol import message_codec
from ramet.wire.guest_protocol.guest_to_host import GuestMessage, Request, ResetStream, Watch
from ramet.wire.guest_protocol.host_to_guest import (
    Answer,
    ChildEnded,
    HostMessage,
    IncomingMail,
    ResponseHead,
    Stop,
    StreamChunk,
)

T = TypeVar("T")
Receive = Callable[[HostMessage | BaseException, bytes], None]


class ChannelClient(Protocol):
    """A client that sends requests to the host from any thread."""

    def ask(self, kind: type[Request], body: bytes = b"", **fields: Any) -> RawAnswer:
        """Send a request, and wait for the answer.

        Raises the host's error, InvalidValue, or RametError if the host has ended.
        """

    def end_of(self, run: str) -> Future[End]:
        """Return a future of a child's end.

        Raises RametError if the host has ended.
        """


class StreamClient(Protocol):
    """A client that opens streams with the host from any thread: a request that is answered by several messages."""

    def open_stream(self, kind: type[Request], receive: Receive, body: bytes = b"", **fields: Any) -> int:
        """Send a request, and return its number.

        `receive` gets each message to it, the last one an `Answer`, or the error that ends the channel. It is called in
        the channel's thread, and does not wait. Raises RametError if the host has ended, and InvalidValue.
        """

    def post(self, message: GuestMessage) -> None:
        """Send a message that has no answer. Raises RametError if the host has ended."""


class ThreadOverAsync:
    """A `ChannelClient` over the channel of an event loop, usable from any thread except that loop's own."""

    def __init__(self, link: AsyncChannel) -> None:
        self._link, self._loop, self._pid = link, asyncio.get_running_loop(), os.getpid()

    def ask(self, kind: type[Request], body: bytes = b"", **fields: Any) -> RawAnswer:
        _encode_checked(kind(id=0, **fields))
        return self._submit(self._link.ask(kind, body, **fields)).result()

    def end_of(self, run: str) -> Future[End]:
        return self._submit(self._link.end_of(run))

    def _submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        problem = None
        if self._pid != os.getpid():
            problem = "this process was forked by an agent: only the agent's own process may ask its host"
        elif asyncio._get_running_loop() is self._loop:
            problem = "the event loop that receives from the host cannot wait for it: do this in code, or in a thread"
        if problem is None:
            try:
                return asyncio.run_coroutine_threadsafe(coroutine, self._loop)
            except RuntimeError:
                problem = "this agent has ended: nothing more can be asked of its host"
        coroutine.close()
        raise RametError(problem)


class ThreadChannel:
    """A `ChannelClient` over a channel of its own.

    A thread receives the answers, from the first request on.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self._send_lock = threading.Lock()  #: request numbers rise in the order of sending
        self._last_id = 0
        self._pending_answers: dict[int, Future[RawAnswer]] = {}
        self._ends: dict[str, Future[End]] = {}
        self._streams: dict[int, Receive] = {}
        self.on_mail: Callable[[IncomingMail, bytes], None] | None = None  #: called in the channel's thread
        self._reader: threading.Thread | None = None
        self._close_reason: BaseException | None = None  #: the reason that nothing is received any more

    def ask(self, kind: type[Request], body: bytes = b"", **fields: Any) -> RawAnswer:
        answer: Future[RawAnswer] = Future()
        with self._send_lock:
            self._last_id += 1
            number = self._last_id
            control = _encode_checked(kind(id=number, **fields))
            self._pending_answers[number] = answer
            try:
                self._send(control, body)
            except BaseException:
                self._pending_answers.pop(number, None)
                raise
        return answer.result()

    def open_stream(self, kind: type[Request], receive: Receive, body: bytes = b"", **fields: Any) -> int:
        with self._send_lock:
            self._last_id += 1
            number = self._last_id
            control = _encode_checked(kind(id=number, **fields))
            self._streams[number] = receive
            try:
                self._send(control, body)
            except BaseException:
                self._streams.pop(number, None)
                raise
        return number

    def post(self, message: GuestMessage) -> None:
        with self._send_lock:
            if isinstance(message, ResetStream):
                self._streams.pop(message.request, None)  # It gets no answer.
            self._send(_encode_checked(message))

    def end_of(self, run: str) -> Future[End]:
        with self._send_lock:
            end = self._ends.get(run)
            if end is None:
                end = self._ends[run] = Future()
                try:
                    self._send(_encode_checked(Watch(run=run)))
                except BaseException:
                    self._ends.pop(run, None)
                    raise
            return end

    def _send(self, control: bytes, body: bytes = b"") -> None:
        self.channel.check_own()
        if self._reader is None:
            reader = threading.Thread(target=self._receive_all, name="ramet-channel", daemon=True)
            try:
                reader.start()
            except RuntimeError:
                raise RametError("no thread can be started to receive from the host: policy.pids is used up") from None
            self._reader = reader
        if self._close_reason is not None:  # Checked after the future is stored: the setter fails all stored ones.
            raise RametError(str(self._close_reason))
        self.channel.write(control, body)

    def _receive_all(self) -> None:
        failure: BaseException = RametError("the host has closed the channel")
        try:
            while (frame := self.channel.read()) is not None:
                self._handle_message(message_codec.from_host(frame.control), frame.body)
        except ProtocolError as error:
            failure = RametError(f"the host broke the rules of the channel: {error}")
        except BaseException as problem:  # most likely out of memory: waiters must receive it
            failure = problem
        self._close_reason = failure
        self._fail(failure)

    def _handle_message(self, message: HostMessage, body: bytes) -> None:
        match message:
            case ResponseHead() | StreamChunk() if (receive := self._streams.get(message.id)) is not None:
                receive(message, body)
            case Answer() if (receive := self._streams.pop(message.id, None)) is not None:
                receive(message, body)
            case Answer() if (answer := self._pending_answers.pop(message.id, None)) is not None:
                if message.error is not None:
                    answer.set_exception(decode_error(message.error, message.fields))
                else:
                    answer.set_result(RawAnswer(message.data, body))
            case ChildEnded() if (end := self._ends.get(message.run)) is not None and not end.done():
                end.set_result(End(message, body))
            case IncomingMail() if self.on_mail is not None:
                self.on_mail(message, body)
            case Stop():
                self._fail(Aborted(message.reason))

    def _fail(self, error: BaseException) -> None:
        """Raise the error in all waiters."""
        while self._pending_answers:
            self._pending_answers.popitem()[1].set_exception(error)
        while self._streams:
            self._streams.popitem()[1](error, b"")
        for run, end in list(self._ends.items()):
            if not end.done():
                self._ends.pop(run, None)
                end.set_exception(error)


def _encode_checked(message: GuestMessage) -> bytes:
    """Encode a message and check that the host accepts it.

    A wrong argument is the caller's error, and does not cost the channel.
    """
    try:
        control = message_codec.encode(message)
        message_codec.from_guest(control)
    except (TypeError, ValueError, ProtocolError) as problem:
        raise InvalidValue(
            type(message).__name__, str(problem)[:200], "arguments of the types that are annotated"
        ) from None
    return control


_connected: list[ThreadChannel] = []
_overrides: list[ChannelClient] = []


def connect(channel: Channel) -> None:
    """Set the channel of this agent process."""
    _connected[:] = [ThreadChannel(channel)]


def override_channel(other: ChannelClient | None) -> None:
    """Replace this agent's channel by another client; None ends the replacement."""
    _overrides[:] = [] if other is None else [other]


def current_channel() -> ChannelClient:
    """Return the client of this agent.

    Raises RametError if there is none, and in a process that the agent forked.
    """
    if _overrides:
        return _overrides[0]
    if not _connected:
        raise RametError(
            "this code does not run inside an agent: pass a function to `await AgentRuntime(...).run_agent(agent=…)`, "
            "and call this from there"
        )
    _connected[0].channel.check_own()
    return _connected[0]


def stream_channel() -> StreamClient:
    """Return the client of this agent for streams.

    Raises RametError if this code is not an agent's own, and for an agent whose loop is in the sandbox.
    """
    channel = current_channel()
    if not isinstance(channel, ThreadChannel):
        raise RametError("only a function has streams with its host")
    return channel
