"""An agent of the type "function": a conversation whose every answer is one call, each a tree of its own."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from ramet.core.errors import Bug, DefinitionMissing, MailRefused, NotShippable, RametError
from ramet.core.outcome import NOTHING_USED, ErrorInfo, Result
from ramet.core.policy import Policy
from ramet.host.safety.gate import SafetyGate
from ramet.services.contract import Opening
from ramet.services.formats.shipped import format_of
from ramet.services.types import calling, loading, turns_file
from ramet.services.types.again import left_of
from ramet.services.types.ends import as_spent, problem_of
from ramet.services.types.imports import Reference
from ramet.services.types.loading import LoadBundle, UnloadBundle
from ramet.services.types.place import secrets_of
from ramet.services.types.turns_file import KeptTurn, Said, TurnsFile
from ramet.spawn.handle import Handle


class FunctionAgent:
    """One conversation. Its calls share nothing but what is in it: each sandbox is a new one."""

    def __init__(
        self,
        opening: Opening,
        function: Callable[..., Any] | Reference,
        policy: Policy | None,
        isolation: str,
        gate: SafetyGate | None = None,
    ) -> None:
        """`function` is a reference where only its sandbox can import it."""
        self.isolation, self.run, self._gate = isolation, opening.run, gate
        self._opening, self._function, self._policy = opening, function, policy
        self._turns = TurnsFile(opening.folder)
        self._usage = NOTHING_USED
        self._handle: Handle | None = None  #: of the turn under way
        self.ended: asyncio.Future[ErrorInfo | None] = asyncio.get_running_loop().create_future()

    async def take_up(self) -> None:
        """Go on where a killed server left it: with the turns that were over, and what they used.

        One that was under way is over now: what its function had begun to do is not done again.
        """
        if not self._opening.run:
            return
        self._turns.read()
        for turn in self._turns.turns:
            self._usage += turn.used
        with suppress(DefinitionMissing):
            secrets = secrets_of(self._policy)
            resume = self._opening.runtime.resume
            for left in await resume(only=self._opening.run, secrets=secrets, gate=self._gate):
                await left.cancel("its server was killed in the middle of this turn")
                self._keep(KeptTurn(asked="", said="", used=left.run.subtree))  # Nobody knows what it would have said.

    # ---- talking

    async def turn(self, body: bytes, format: str) -> AsyncIterator[bytes]:
        """Answer the last message of a body. Leaving the iteration interrupts the turn.

        Raises InvalidValue for a body that is none; after what was said Aborted for a turn that was interrupted, and
        TaskFailed, of the status that it had, for one that failed; OutputTooLarge for an answer without end.
        """
        shape = format_of(format)
        text = shape.read(body)
        if self.ended.done():
            raise RametError("this agent has ended")
        pieces, said = _Pieces(), Said()
        handle = self._handle = await self._started(text, pieces)
        ending = asyncio.ensure_future(handle.result())
        ending.add_done_callback(pieces.close)
        try:
            created = int(self._opening.runtime.clock.now().timestamp())
            writer = shape.Writer(handle.id, _name_of(self._function), created)
            for chunk in writer.begin():
                yield chunk
            while (piece := await pieces.next()) is not None:
                said.take(piece)
                for chunk in writer.text(piece):
                    yield chunk
            result = ending.result()
            if rest := _rest(result, said):
                said.take(rest)
                for chunk in writer.text(rest):
                    yield chunk
        finally:
            if not ending.done():
                await handle.cancel("the reader left")
                await ending
            self._handle = None
            self._keep(KeptTurn(asked=text, said=said.text, used=ending.result().usage_subtree))
        problem = problem_of(result, handle.id)
        if problem is not None:
            raise problem
        for chunk in writer.end(result.usage_subtree):
            yield chunk

    async def interrupt(self) -> None:
        """End the turn under way, keeping the agent and its history."""
        if self._handle is not None:
            await self._handle.cancel("it was interrupted")

    async def mail(self, text: str) -> None:
        """Refused. Raises MailRefused."""
        raise MailRefused(self._opening.path, "it is a function and reads no mail")

    async def close(self, reason: str) -> None:
        """End it and all below it, and wait until they are gone. Idempotent."""
        if not self.ended.done():
            self.ended.set_result(None)
        if self._handle is not None:
            await self._handle.cancel(reason)

    # ---- looking

    async def history(self) -> Sequence[Mapping[str, Any]]:
        """Its conversation: `role` (user, assistant) and `content` of each message."""
        return self._turns.history()

    def spent(self) -> Mapping[str, float]:
        """What it and what it started has used: tokens, usd, model_calls, tool_calls, agents."""
        return as_spent(self._usage)

    async def control(self, operation: Any) -> Any:
        """Load and unload bundles: what a call imports, also the one under way, may come from them."""
        if isinstance(operation, LoadBundle | UnloadBundle):
            return await loading.change(self._opening, operation)
        raise Bug(f"an operation that was not declared: {type(operation).__name__}")

    # ----

    async def _started(self, text: str, pieces: _Pieces) -> Handle:
        runtime, function, history = self._opening.runtime, self._function, self._turns.history()
        limits = left_of(self._opening.limits, self._usage)  # Each turn is a tree, with a budget of its own.
        shelf = self._opening.shelf.folder if self._opening.shelf is not None else None
        if isinstance(function, Reference):
            handle = await runtime.spawn(
                calling.call_named,
                args=(*function, text, history),
                policy=self._policy,
                limits=limits,
                on_output=pieces.printed,
                shelf=shelf,
                gate=self._gate,
            )
        elif self._policy is not None:
            handle = await runtime.spawn(
                calling.call_inside,
                args=(function, text, history),
                policy=self._policy,
                limits=limits,
                on_output=pieces.printed,
                shelf=shelf,
                gate=self._gate,
            )
        else:
            handle = await runtime.spawn(_in_the_host(function, pieces.put), args=(text, history), limits=limits)
        self.run = handle.id
        return handle

    def _keep(self, turn: KeptTurn) -> None:
        """Put a turn on record, and what it used onto the account, however it ended."""
        self._turns.keep(turn)
        self._usage += turn.used


def _in_the_host(function: Callable[..., Any], out: Callable[[str], None]) -> Callable[..., Any]:
    """The function with its way out bound. Synchronous code gets a thread by that, async code none."""

    def call(text: str, history: calling.History) -> Any:
        return calling.call(function, text, history, out)

    async def wait(text: str, history: calling.History) -> Any:
        return await calling.finish(calling.begin(function, text, history), out)

    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    bound: Callable[..., Any] = wait if is_async else call
    bound.__name__ = _name_of(function)
    return bound


def _name_of(function: Callable[..., Any] | Reference) -> str:
    return function.name if isinstance(function, Reference) else str(getattr(function, "__name__", "function"))


class _Pieces:
    """What is said, from whichever thread, for one reader."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[str | None] = asyncio.Queue()
        self.size = 0  #: characters that were said, those as well that nobody reads any more

    def printed(self, stream: str, text: str) -> None:
        """What a sandbox prints; its errors are not for the reader."""
        if stream == "stdout":
            self.put(text)

    def put(self, text: str) -> None:
        """From any thread."""
        if (
            self.size <= turns_file.MOST_SAID
        ):  # Else it is known already that it is too much: nothing more is kept of it.
            self.size += len(text)
            self._loop.call_soon_threadsafe(self._queue.put_nowait, _unicode(text))

    def close(self, _: object) -> None:
        """Nothing more comes: what was put before is read first."""
        self._loop.call_soon(self._queue.put_nowait, None)

    async def next(self) -> str | None:
        """The next one; None after the last."""
        return await self._queue.get()


def _rest(result: Result, said: Said) -> str:
    """What it returned, as text, behind what it has said."""
    value = result.value
    if value is None:
        return ""
    try:
        text = _unicode(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))
    except (ValueError, TypeError, RecursionError) as problem:
        raise NotShippable("what the function returned", str(problem), "return text, or data in few levels") from None
    return text if said.ends_a_line else f"\n{text}"


def _unicode(text: str) -> str:
    """Text that can be written down: a lone surrogate is none."""
    return text.encode("utf-8", "replace").decode()
