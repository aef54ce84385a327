"""`SyncSession`: a session for programs without an event loop."""

from __future__ import annotations

import os
import pathlib
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypeVar

from ramet.agent.definition import Agent
from ramet.core.errors import InvalidValue
from ramet.core.events import Event
from ramet.core.limits import Limits
from ramet.core.media.attachment import Attachment
from ramet.core.outcome import Result, T, Usage
from ramet.host.loop_thread import refuse_in_loop
from ramet.host.runtime import AgentRuntime
from ramet.host.session import Session
from ramet.host.sessions.session_arguments import sandboxed_children
from ramet.tools.run_info import StopReceipt

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessageChunk
    from langchain_core.tools import BaseTool

R = TypeVar("R")
Tools = Sequence["BaseTool | Callable[..., Any] | str"]


class SyncSession(Generic[T]):
    """A `Session` whose methods block: it works in an event loop in a thread of its own, from construction to `close`.

    Takes the arguments of `Session`, and raises the same errors. An interrupt (Ctrl-C) of a waiting method cancels its
    work. A `runtime` must have been started by `start_sync`. Raises RametError if an event loop runs in this thread.
    """

    def __init__(
        self,
        llm: BaseChatModel | None = None,
        tools: Tools = (),
        *,
        agent: Agent[T] | Mapping[str, Any] | str | None = None,
        **options: Any,
    ) -> None:
        async def begin(runtime: AgentRuntime) -> Session[T]:
            return await Session(llm, tools, agent=agent, runtime=runtime, **options).start()

        self._open(begin, options)

    @classmethod
    def resume(cls, session: str, llm: BaseChatModel | None = None, tools: Tools = (), **options: Any) -> Self:
        """Resume a recorded conversation. Takes the arguments of `Session.resume`, and raises the same errors."""

        async def begin(runtime: AgentRuntime) -> Session[T]:
            return await Session.resume(session, llm, tools, runtime=runtime, **options)

        self = cls.__new__(cls)
        self._open(begin, options)
        return self

    def _open(self, begin: Callable[[AgentRuntime], Coroutine[Any, Any, Session[T]]], options: dict[str, Any]) -> None:
        refuse_in_loop("a SyncSession", "use Session")
        runtime: AgentRuntime | None = options.pop("runtime", None)
        self._own_runtime = runtime is None
        self.runtime = runtime or _runtime(options)
        if self._own_runtime:
            self.runtime.start_sync()
        try:
            self._session = self.runtime.call_in_loop(begin(self.runtime))
        except BaseException:
            if self._own_runtime:
                self.runtime.stop_sync()
            raise
        self._is_closed = False

    # ---- prompts and messages

    def submit_message(self, text: str, attachments: Sequence[Attachment] = ()) -> Generator[AIMessageChunk | Event]:
        """Work on a prompt, and yield the items of `Session.submit_message`. Leaving early interrupts the turn."""
        yield from self._read(self._session.submit_message(text, attachments))

    def _read(self, items: AsyncGenerator[AIMessageChunk | Event]) -> Generator[AIMessageChunk | Event]:
        async def next_item() -> tuple[AIMessageChunk | Event] | None:
            async for item in items:
                return (item,)
            return None

        try:
            while (item := self._call(next_item())) is not None:
                yield item[0]
        finally:
            self._call(items.aclose())

    def ask(
        self,
        text: str,
        *,
        attachments: Sequence[Attachment] = (),
        on_pause: Literal["wait", "return"] = "wait",
    ) -> Result[T]:
        """Work on a prompt and return the result of the turn, as `Session.ask` does."""
        return self._call(self._session.ask(text, attachments=attachments, on_pause=on_pause))

    def raise_limits(self, add: Limits, *, key: str = "") -> Limits:
        """Add to the limits of the whole tree, as `Session.raise_limits` does."""
        return self._call(self._session.raise_limits(add, key=key))

    def listen(self) -> Generator[AIMessageChunk | Event]:
        """Read the running turn that no prompt of this session started; yield nothing if there is none.

        Yields the items of `submit_message`. Leaving early does not interrupt the turn.
        """

        async def begin() -> AsyncGenerator[AIMessageChunk | Event] | None:
            turn = self._session.listen()
            return turn.read() if turn is not None else None

        items = self._call(begin())
        if items is not None:
            yield from self._read(items)

    def wait_for_turn(self) -> Result[T] | None:
        """Wait for the end of the running turn that no prompt of this session started."""
        return self._call(self._session.wait_for_turn())

    def send(self, text: str, *, dedupe_s: float | None = None) -> str:
        """Put a user's message into the root's mailbox, as `Session.send` does."""

        async def send() -> str:
            return self._session.send(text, dedupe_s=dedupe_s)

        return self._call(send())

    def interrupt(self, reason: str = "interrupted by the user") -> None:
        """End the running turn, from another thread."""
        self._call(self._session.interrupt(reason))

    def cancel(self, reason: str = "cancelled by the user") -> StopReceipt:
        """End the whole tree; `left` lists the runs that could not be ended."""
        return self._call(self._session.cancel(reason))

    def close(self) -> None:
        """End the running turn and all agents below the root; the conversation stays recorded. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            self._call(self._session.close())
        finally:
            if self._own_runtime:
                self.runtime.stop_sync()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- inspection

    @property
    def session(self) -> Session[T]:
        """The wrapped session, for operations without a method here: use it in the runtime's event loop."""
        return self._session

    @property
    def id(self) -> str:
        """The id of the root run."""
        return self._session.id

    @property
    def result(self) -> Result[T] | None:
        """The result of the newest turn that ended in this session."""
        return self._session.result

    @property
    def messages(self) -> list[Any]:
        """A copy of the root's conversation so far."""
        return self._session.messages

    @property
    def usage(self) -> Usage:
        """The usage of the whole tree so far."""
        return self._session.usage

    def _call(self, work: Coroutine[Any, Any, R]) -> R:
        try:
            refuse_in_loop("a SyncSession", "use Session")
        except BaseException:
            work.close()
            raise
        return self.runtime.call_in_loop(work)


def _runtime(options: dict[str, Any]) -> AgentRuntime:
    """Return a runtime of the session's own, in the session's folder."""
    cwd = options.get("cwd")
    if cwd is not None and not isinstance(cwd, str | os.PathLike):
        raise InvalidValue("cwd", cwd, "the path of a folder")
    folder = pathlib.Path(cwd).absolute() if cwd is not None else None
    if folder is not None and not folder.is_dir():
        raise InvalidValue("cwd", str(cwd), "an existing folder")
    backend = options.pop("backend", None)
    if backend is not None and options.get("policy") is None:
        options["policy"] = sandboxed_children(folder)
    return AgentRuntime(folder, backend=backend)
