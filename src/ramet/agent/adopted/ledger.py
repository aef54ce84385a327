"""Meter an adopted agent by LangChain's callbacks: reserve before each call, settle after it, refuse if over budget.

LangChain calls its callbacks before and after each model request and tool call, at any depth. There are two paths. A
call awaited in the run's event loop reaches `Gatekeeper` first, which may wait: for the gates, for a person, for the
record. A synchronous call, in any thread, reaches `Bookkeeper`, which uses the loop for the same steps. In the loop
itself a synchronous call cannot wait: it is reserved, and refused if a gate would have to be asked.

The ledger is used only in the event loop. Everything here that may raise raises before the effect.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError, Future, wait
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import LLMResult
from langchain_core.tracers.context import register_configure_hook

from ramet.agent.adopted.requests import foreign_request
from ramet.concurrency.threads import executor_work
from ramet.core.budget import Hold
from ramet.core.errors import Aborted, BudgetExceeded, Bug, Denied, RametError
from ramet.core.events import ToolEnded, ToolStarted
from ramet.core.ids import CallId
from ramet.core.limits import Amount
from ramet.core.outcome import Usage
from ramet.tools.context import OrphanedThread, ToolUseContext, current_call
from ramet.tools.foreign_calls import has_gates, pass_gates
from ramet.tools.model_request import Charge

T = TypeVar("T")
_ONE_CALL = Amount(tool_calls=1)
#: Recorded characters of a tool's result.
PREVIEW_CHARS = 2_000
#: How long a thread waits until the event loop handles its call: a loop that waits for the thread never would.
BLOCKED_S = 30.0
_BLOCKED_BY = "perhaps by a synchronous call that waits for this one: await `ainvoke` or `abatch` instead"


class _ToolCall(NamedTuple):
    call_id: CallId
    tool: str
    started_s: float


class Ledger:
    """The model requests and tool calls of one adopted run. All methods must be called in the run's event loop."""

    def __init__(self, context: ToolUseContext) -> None:
        self.context = context
        self.loop = asyncio.get_running_loop()
        self.thread = threading.get_ident()
        self.refusal: RametError | None = None  #: newest refusal: why the framework may have failed
        self.pending_refusals: dict[UUID, Exception] = {}  #: refusals of the gatekeeper, for the bookkeeper to raise
        self._charges: dict[UUID, Charge] = {}
        self._calls: dict[UUID, _ToolCall] = {}
        self._waits: set[asyncio.Task[Any]] = set()  #: that wait at a limit
        self._is_closed = False

    def was_admitted(self, key: UUID) -> bool:
        """Return whether a request or a tool call was admitted."""
        return key in self._charges or key in self._calls

    def reserve(self, key: UUID, serialized: Any, messages: Sequence[BaseMessage], callback_kwargs: Any) -> None:
        """Reserve the possible usage of a model request now: its caller cannot wait.

        Raises BudgetExceeded, Aborted, and Unknown without a price.
        """
        meter = self._meter(serialized, messages, callback_kwargs)
        with self._refusals():
            self._charges[key] = meter()

    async def reserve_waiting(
        self, key: UUID, serialized: Any, messages: Sequence[BaseMessage], callback_kwargs: Any
    ) -> None:
        """Reserve the possible usage of a model request, where a limit pauses once it fits. Raises like `reserve`."""
        meter = self._meter(serialized, messages, callback_kwargs)
        with self._refusals():
            charge = await self._while_open(self.context.reserve(meter, lambda charge: charge.cancel()))
        try:
            self._check_open()
        except Aborted:
            charge.cancel()
            raise
        self._charges[key] = charge

    async def _while_open(self, wait: Coroutine[Any, Any, T]) -> T:
        """Wait at a limit, at most until the run has ended: a wait for another thread is no part of the run's task."""
        task = asyncio.current_task()
        assert task is not None, "called in the event loop"
        self._waits.add(task)
        try:
            return await wait
        finally:
            self._waits.discard(task)

    def _meter(self, serialized: Any, messages: Sequence[BaseMessage], callback_kwargs: Any) -> Callable[[], Charge]:
        self._check_open()
        context, meter = self.context, self.context.meter
        if meter is None:
            raise Bug("an adopted agent has a meter")
        request = foreign_request(context.next_step(), serialized or {}, messages, callback_kwargs)
        return lambda: meter(context, request)

    def settle(self, key: UUID, reply: AIMessage) -> None:
        if (charge := self._charges.pop(key, None)) is not None:
            charge.settle(reply)

    def fail(self, key: UUID, error: BaseException) -> None:
        if (charge := self._charges.pop(key, None)) is not None:
            charge.fail(error)

    async def admit(self, key: UUID, tool: str, args: dict[str, Any], call_id: CallId) -> None:
        """Ask the gates about a tool call, then begin it. Raises Denied, BudgetExceeded, Aborted."""
        self._check_open()
        with self._refusals():
            await pass_gates(self.context, call_id, tool, args)
            wait = self.context.reserve(lambda: self.context.budget.reserve(_ONE_CALL), Hold.refund)
            hold = await self._while_open(wait)
        try:
            self._check_open()
        except Aborted:
            hold.refund()
            raise
        self._begin_call(key, tool, args, call_id, hold)

    def start_call(self, key: UUID, tool: str, args: dict[str, Any], call_id: CallId) -> None:
        """Count and record a tool call now: its caller cannot wait. Raises BudgetExceeded, Aborted."""
        self._check_open()
        with self._refusals():
            hold = self.context.budget.reserve(_ONE_CALL)
        self._begin_call(key, tool, args, call_id, hold)

    def _begin_call(self, key: UUID, tool: str, args: dict[str, Any], call_id: CallId, hold: Hold) -> None:
        context = self.context
        context.emit(ToolStarted, call_id=call_id, tool=tool, step_id=context.next_step(), args=args)
        hold.settle(_ONE_CALL)  # From here on the call counts, however it ends.
        context.spend(Usage(tool_calls=1))
        self._calls[key] = _ToolCall(call_id, tool, context.clock.monotonic())

    def end_call(self, key: UUID, status: str, preview: str) -> None:
        if (call := self._calls.pop(key, None)) is not None:
            elapsed_ms = round((self.context.clock.monotonic() - call.started_s) * 1000, 3)
            self.context.emit(
                ToolEnded,
                call_id=call.call_id,
                tool=call.tool,
                status=status,
                preview=preview[:PREVIEW_CHARS],
                elapsed_ms=elapsed_ms,
            )

    def close(self) -> None:
        """Prevent further calls, and settle open ones as cut off."""
        self._is_closed = True
        for task in self._waits - {asyncio.current_task()}:
            task.cancel()
        abort_error = Aborted(self.context.abort.reason or "its run has ended")
        for key in list(self._charges):
            self.fail(key, abort_error)
        for key in list(self._calls):
            self.end_call(key, "cancelled", "")

    def register_threads(self) -> None:
        """Register the threads that still work for this run: they cannot be ended, but begin no further call."""
        for number, work in enumerate(executor_work(self._is_ours)):
            self._register_thread(f"{self.context.run.id}:thread:{number}", work)

    def _register_thread(self, key: str, work: Future[Any]) -> None:
        orphans, thread = self.context.orphaned_threads, asyncio.wrap_future(work)

        def on_done(future: asyncio.Future[Any]) -> None:
            orphans.pop(key, None)
            if not future.cancelled():
                future.exception()  # Fenced: its late result or exception has no receiver.

        orphans[key] = OrphanedThread(self.context.run.agent, thread)
        thread.add_done_callback(on_done)

    def _is_ours(self, variables: Context) -> bool:
        handler = variables.get(_bookkeeper)
        return handler is not None and handler.ledger is self

    def _check_open(self) -> None:
        self.context.abort.raise_if_aborted()
        if self._is_closed:
            raise Aborted("its run has ended")

    @contextmanager
    def _refusals(self) -> Iterator[None]:
        """Record a refusal raised inside: a framework may wrap or swallow it."""
        try:
            yield
        except RametError as error:
            self.refusal = error
            if isinstance(error, BudgetExceeded):
                self.context.record_refusal(error)
            raise


class _Handler:
    """The base of both handlers: it selects the calls they handle, and makes their refusals effective."""

    raise_error = True
    run_inline = True

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self.ledger = ledger

    @property
    def ignore_llm(self) -> bool:
        """Return whether to skip model requests and tool calls: a run below, which inherits the handler, meters
        itself.
        """
        handler, call = _bookkeeper.get(), current_call.get(None)
        if handler is None:  # A thread without the run's context variables, which got the handler explicitly.
            return False
        return handler.ledger is not self.ledger or call is None or call.context is not self.ledger.context

    @property
    def ignore_chat_model(self) -> bool:
        return self.ignore_llm

    @property
    def ignore_agent(self) -> bool:
        return self.ignore_llm


class Gatekeeper(_Handler, AsyncCallbackHandler):
    """The handler of awaited calls in the event loop of the run; it may wait.

    A refusal is raised by the bookkeeper, which runs last: LangChain has created a coroutine for each handler by now,
    and would not await those after the handler that raises.
    """

    @property
    def ignore_llm(self) -> bool:
        """Return whether to skip model requests and tool calls: calls in other threads are the bookkeeper's."""
        return super().ignore_llm or threading.get_ident() != self.ledger.thread

    async def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Reserve a request, and record it."""
        if asyncio.get_running_loop() is self.ledger.loop:
            try:
                await self.ledger.reserve_waiting(run_id, serialized, _first_messages(messages), kwargs)
                await self.ledger.context.wait_persisted()
            except Exception as refusal:
                self.ledger.pending_refusals[run_id] = refusal

    async def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        await self.on_chat_model_start(serialized, _messages(prompts), run_id=run_id, **kwargs)

    async def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        """Ask the gates about a tool call, count it, and record it."""
        if asyncio.get_running_loop() is self.ledger.loop:
            try:
                await self.ledger.admit(run_id, *_tool_call(serialized, input_str, run_id, kwargs))
                await self.ledger.context.wait_persisted()
            except Exception as refusal:
                self.ledger.pending_refusals[run_id] = refusal


class Bookkeeper(_Handler, BaseCallbackHandler):
    """The handler of synchronous calls, in any thread, and of the end of every call."""

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Reserve a request, unless the gatekeeper has."""
        ledger = self.ledger

        async def reserve() -> None:
            await ledger.reserve_waiting(run_id, serialized, _first_messages(messages), kwargs)
            await ledger.context.wait_persisted()

        if threading.get_ident() != ledger.thread:
            self._wait(reserve())
        elif not self._was_admitted(run_id):
            ledger.reserve(run_id, serialized, _first_messages(messages), kwargs)

    def on_llm_start(self, serialized: Any, prompts: Any, *, run_id: UUID, **kwargs: Any) -> None:
        self.on_chat_model_start(serialized, _messages(prompts), run_id=run_id, **kwargs)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        self._call_in_loop(lambda: self.ledger.settle(run_id, _reply(response)))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._call_in_loop(lambda: self.ledger.fail(run_id, error))

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        """Ask the gates and count a tool call, unless the gatekeeper has."""
        ledger, call = self.ledger, _tool_call(serialized, input_str, run_id, kwargs)

        async def admit() -> None:
            await ledger.admit(run_id, *call)
            await ledger.context.wait_persisted()

        if threading.get_ident() != ledger.thread:
            self._wait(admit())
        elif not self._was_admitted(run_id):
            if has_gates(ledger.context):
                ledger.refusal = Denied(
                    call[0], "a synchronous call in the event loop, which cannot wait for the answer of a gate"
                )
                raise ledger.refusal
            ledger.start_call(run_id, *call)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        text = output.text if isinstance(output, ToolMessage) else str(output)
        is_error = isinstance(output, ToolMessage) and output.status == "error"
        self._call_in_loop(lambda: self.ledger.end_call(run_id, "error" if is_error else "ok", str.__str__(text)))

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self._call_in_loop(lambda: self.ledger.end_call(run_id, "error", f"{type(error).__name__}: {error}"))

    def _was_admitted(self, key: UUID) -> bool:
        """Return whether the gatekeeper admitted the call. Raises its refusal otherwise."""
        if (refusal := self.ledger.pending_refusals.pop(key, None)) is not None:
            raise refusal
        return self.ledger.was_admitted(key)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the run's event loop, and block until it is done.

        Raises Aborted if the loop is gone, and RametError if it is blocked, possibly by a call that waits for this
        thread.
        """
        loop = self.ledger.loop
        try:
            future = asyncio.run_coroutine_threadsafe(work, loop)
        except RuntimeError as error:
            work.close()
            raise Aborted("its event loop is closed") from error
        while True:
            loop_responded = threading.Event()
            with suppress(RuntimeError):  # If the loop is gone, the coroutine will not finish either.
                loop.call_soon_threadsafe(loop_responded.set)
            if wait([future], BLOCKED_S).done:
                try:
                    return future.result()
                except CancelledError as error:  # It waited at a limit when its run ended.
                    raise Aborted("its run has ended") from error
            if not loop_responded.is_set() and future.cancel():
                blocked_error = RametError(f"its event loop was blocked for {BLOCKED_S:g} s, {_BLOCKED_BY}")
                self.ledger.refusal = blocked_error
                raise blocked_error

    def _call_in_loop(self, function: Callable[[], None]) -> None:
        """Call a function in the run's event loop, now or soon; if the loop is gone, `close` has done its work."""
        if threading.get_ident() == self.ledger.thread:
            return function()
        try:
            self.ledger.loop.call_soon_threadsafe(function)
        except RuntimeError:
            pass


#: The handlers of the current run. LangChain adds them to the callbacks of every call, in this order.
_gatekeeper: ContextVar[Gatekeeper | None] = ContextVar("ramet_gatekeeper", default=None)
_bookkeeper: ContextVar[Bookkeeper | None] = ContextVar("ramet_bookkeeper", default=None)
register_configure_hook(_gatekeeper, inheritable=True)
register_configure_hook(_bookkeeper, inheritable=True)


@contextmanager
def meter_calls(ledger: Ledger) -> Iterator[None]:
    """Meter all LangChain calls inside with a ledger, which is closed at the end."""
    tokens = _gatekeeper.set(Gatekeeper(ledger)), _bookkeeper.set(Bookkeeper(ledger))
    try:
        yield
    except asyncio.CancelledError:
        ledger.register_threads()
        raise
    finally:
        _gatekeeper.reset(tokens[0])
        _bookkeeper.reset(tokens[1])
        ledger.close()


def _first_messages(messages: Sequence[Sequence[BaseMessage]]) -> Sequence[BaseMessage]:
    """Return the messages of a request: LangChain passes each request's in a separate list."""
    return messages[0] if messages else ()


def _messages(prompts: Sequence[str]) -> list[list[BaseMessage]]:
    return [[HumanMessage(text) for text in prompts]]


def _reply(response: LLMResult) -> AIMessage:
    """Return the reply with usage data; an empty reply if there is none."""
    for generations in response.generations:
        for each in generations:
            message = getattr(each, "message", None)
            if isinstance(message, AIMessage) and message.usage_metadata is not None:
                return message
    return AIMessage("")


def _tool_call(
    serialized: Any, input_str: str, run_id: UUID, kwargs: dict[str, Any]
) -> tuple[str, dict[str, Any], CallId]:
    """Return the tool of a call, its arguments as data, and the call's id."""
    name = str((serialized or {}).get("name") or kwargs.get("name") or "tool")
    inputs = kwargs.get("inputs")
    try:
        args = msgspec.json.decode(msgspec.json.encode(inputs))
    except (TypeError, ValueError, RecursionError):
        args = None
    call_id = kwargs.get("tool_call_id") or str(run_id)
    return name, args if isinstance(args, dict) else {"input": input_str}, CallId(call_id)
