"""The gateway to the models: reserves, waits for the rate limit, asks, retries, settles. Keys and clients stay here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakValueDictionary

from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.utils.function_calling import convert_to_openai_tool

from ramet.agent.mentions import with_mentioned_calls
from ramet.concurrency.clock import Clock
from ramet.concurrency.cuts import WorkCut
from ramet.core.budget import Hold
from ramet.core.errors import InvalidValue, ModelFailed
from ramet.core.events import MessageDiscarded, ModelRetried, QuotaReached
from ramet.host.charging import Account, ForeignCharge, Provider
from ramet.models.call import Bound, bind, complete, merge, output_limit, stream_reply
from ramet.models.effort import Effort, with_effort
from ramet.models.messages import input_bound
from ramet.models.prices import PRICES, Price
from ramet.models.providers.credentials import check_key
from ramet.models.providers.request_media import fitted_messages, sight_of, with_data
from ramet.models.providers.stream_usage import UsageRefused
from ramet.models.quota_line import QuotaWindow
from ramet.models.rate_limit import RateLimiter, Retry, RetryPolicy
from ramet.models.resolve import model_name, resolve
from ramet.models.retries import without_retries
from ramet.spawn.ports import ModelPort
from ramet.tools.context import ToolUseContext
from ramet.tools.model_request import Charge, ForeignRequest, ModelRequest

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import BaseMessage
    from langchain_core.tools import BaseTool

#: Lists of tools that a model stays bound to.
MAX_BOUND_TOOLS = 1_000


class Gateway:
    """The gateway of one runtime: its resolved models, and the rate limiters that all its agents share."""

    def __init__(
        self, clock: Clock, *, prices: Mapping[str, Price] | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self._clock = clock
        self._prices = {**PRICES, **(prices or {})}
        self._retry = retry
        self._limiters: dict[str, RateLimiter] = {}  #: by name of the model
        #: Names of models that runs may ask for; None allows any. Model objects come from the host and are not checked.
        self.accepted_models: Collection[str] | None = None
        self._by_name: dict[str, _Port] = {}
        self._by_object: WeakValueDictionary[int, _Port] = WeakValueDictionary()  # a port keeps its model

    def port(self, model: str | BaseChatModel, effort: Effort | None = None) -> ModelPort:
        """Return a model as runs use it, with an effort if it takes that.

        Raises Unknown or MissingExtra for a name that cannot be resolved, InvalidValue for a model that is not
        accepted, ModelFailed for a model without a key.
        """
        if isinstance(model, str):
            if self.accepted_models is not None and model not in self.accepted_models:
                raise InvalidValue("model", model, f"one of {', '.join(sorted(self.accepted_models)) or 'none'}")
            model_port = self._by_name.get(model)
            if model_port is None:
                model_port = self._by_name[model] = self._create_port(resolve(model))
        else:
            model_port = self._by_object.get(id(model))
            if model_port is None:
                model_port = self._by_object[id(model)] = self._create_port(model)
        own_port = model_port if effort is None else self._with_effort(model_port, effort)
        return ModelPort(own_port.ask, own_port.name, own_port.window, effort is not None and own_port is model_port)

    def _with_effort(self, port: _Port, effort: Effort) -> _Port:
        """Return the port of the same model with this effort; the port itself if the model does not take it."""
        ports = port.by_effort
        if effort not in ports:
            model = with_effort(port.owner, effort)
            ports[effort] = port if model is None else self._create_port(model)
        return ports[effort]

    def meter(self, context: ToolUseContext, request: ForeignRequest) -> Charge:
        """Reserve for a request that another framework makes. Raises BudgetExceeded, Unknown.

        The output of such a request cannot be lowered to what is left: the full output limit is reserved, or the
        request is not made.
        """
        provider = Provider(request.model, request.requests, lambda: request.max_tokens, self._prices)
        model_request = ModelRequest(
            messages=request.messages, step=request.step, is_final_answer=True, is_side_request=True
        )
        input_tokens = lambda: input_bound(request.messages, request.schema_bytes)  # noqa: E731 - the usual case is without a limit
        return ForeignCharge(Account(provider, context, model_request, input_tokens, is_whole=True))

    def accepts(self, *names: str) -> bool:
        """Return whether runs may ask for a model that has one of these names."""
        return self.accepted_models is None or not set(names).isdisjoint(self.accepted_models)

    def provider(self, model: str, output_limit: int) -> Provider:
        """Return the bounds of a request that a program makes to a model by itself."""
        return Provider(model, 1, lambda: output_limit, self._prices)

    def _create_port(self, model: BaseChatModel) -> _Port:
        check_key(model)
        name = model_name(model)
        limiter = self._limiters.get(name)
        if limiter is None:
            limiter = self._limiters[name] = RateLimiter(name, clock=self._clock, policy=self._retry)
        return _Port(model, limiter, self._prices, self._clock)


class _BoundTools:
    """A model bound to a list of tools. The list is kept, so that the ids of its tools are not reused."""

    def __init__(self, tools: tuple[BaseTool, ...], bound: Bound) -> None:
        self.tools, self.bound = tools, bound

    @cached_property
    def schema_bytes(self) -> int:
        """The most bytes that the tools' schemas take of a prompt; computed only if a budget needs it."""
        return sum(len(json.dumps(convert_to_openai_tool(tool)).encode()) for tool in self.tools)


class _Port:
    """A model: bound to each list of tools once, and asked through its rate limiter."""

    def __init__(self, model: BaseChatModel, limiter: RateLimiter, prices: Mapping[str, Price], clock: Clock) -> None:
        self.owner = model
        self.by_effort: dict[Effort, _Port] = {}
        self._model, requests = without_retries(model)
        self.name = limiter.name
        self.provider = Provider(self.name, requests, lambda: output_limit(self._model), prices)
        self._limiter = limiter
        self.was_answered = False  #: the model has answered this process: windows of earlier ones are over
        self._clock = clock
        self.window: int | None = (self._model.profile or {}).get("max_input_tokens")
        self._sight = sight_of(self._model)
        self._bound_tools: dict[tuple[int, ...], _BoundTools] = {}

    async def ask(self, context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Ask until there is a reply or no retry is left: yield chunks as they arrive, then the whole message.

        Raises BudgetExceeded before a request that does not fit, ModelFailed after the last attempt.
        """
        bound_tools = self._bind_tools(request)
        if (messages := fitted_messages(request.messages, self._sight)) is not request.messages:
            request = replace(request, messages=messages)
        self._restore_window(context.quota)
        context.quota = None  # Once: what this process hears of its provider is newer.
        call = _Call(self, context, request, bound_tools)
        if not bound_tools.bound.streams:
            yield _with_mentioned_calls(context, request, await call.run())
            return
        pieces = call.pieces = asyncio.Queue[AIMessageChunk | None]()

        async def run() -> AIMessage:
            try:
                return await call.run()
            finally:
                pieces.put_nowait(None)

        task = asyncio.create_task(run(), name=f"{context.run.path}: model")
        try:
            while (chunk := await pieces.get()) is not None:
                yield chunk
            yield _with_mentioned_calls(context, request, await task)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
            if not task.cancelled():
                task.exception()  # Mark the exception as retrieved, even if the reader has left.

    def _restore_window(self, quota: QuotaReached | None) -> None:
        """Wait for the rest of a window that an earlier process met: its provider is not asked before."""
        is_known = self.was_answered or self._limiter.line.window is not None
        if quota is None or quota.model != self.name or is_known:
            return
        # The clock may have been set meanwhile: the rest is not longer than the whole was.
        rest_s = min((quota.until - self._clock.now()).total_seconds(), quota.wait_s)
        if rest_s > 0:
            reason = "its quota was used up in an earlier process"
            self._limiter.line.close(rest_s, ModelFailed(self.name, reason, status=HTTPStatus.TOO_MANY_REQUESTS))

    def _bind_tools(self, request: ModelRequest) -> _BoundTools:
        key = tuple(map(id, request.tools))  # `_BoundTools` keeps the tools, so that no id is reused
        bound_tools = self._bound_tools.get(key)
        if bound_tools is None:
            tools = tuple(request.tools)
            bound_tools = self._bound_tools[key] = _BoundTools(tools, bind(self._model, tools))
            if len(self._bound_tools) > MAX_BOUND_TOOLS:
                del self._bound_tools[next(iter(self._bound_tools))]
        return bound_tools


def _with_mentioned_calls(context: ToolUseContext, request: ModelRequest, reply: AIMessage) -> AIMessage:
    """Return the reply with the calls that its turn owes a prompt: a fork below the root owes its parent's none."""
    if context.run.depth or request.is_final_answer or request.is_side_request:
        return reply
    return with_mentioned_calls(reply, request.messages, request.step)


class _Reserved(NamedTuple):
    """A request that may be sent: its reservation, the limit of the reply, and the messages with their files."""

    hold: Hold
    max_tokens: int | None
    messages: Sequence[BaseMessage]


class _Call:
    """A request of one run, over all its attempts."""

    __slots__ = ("_account", "_bound_tools", "_context", "_plain", "_port", "_request", "_usage", "pieces")

    def __init__(self, port: _Port, context: ToolUseContext, request: ModelRequest, bound_tools: _BoundTools) -> None:
        self._port, self._context, self._request, self._bound_tools = port, context, request, bound_tools
        self._plain = request  #: without a note
        self._account = Account(port.provider, context, request, self._input_tokens)
        self._usage = True  #: False once an attempt was refused because it asked for the usage of its stream
        self.pieces: asyncio.Queue[AIMessageChunk | None] | None = None  #: for the chunks of a reply that streams

    async def run(self) -> AIMessage:
        """Make attempts by the rules of the model's limiter, until there is a reply. Raises the last ModelFailed."""
        reply = await self._port._limiter.call(
            self._attempt, before_wait=self.note_retry, on_window=self.note_window, in_line=self._wait_in_line
        )
        self._port.was_answered = True
        return reply

    async def _attempt(self, attempt: int) -> AIMessage:
        """Make one attempt.

        An endpoint that refuses to report the usage of a stream is asked again at once without usage. That second
        request is reserved and settled like any other.
        """
        try:
            return await self._repeat_if_cut(attempt)
        except UsageRefused as error:
            self.note_retry(Retry(attempt, 0.0, error))
        self._usage = False
        return await self._repeat_if_cut(attempt)

    async def _repeat_if_cut(self, attempt: int) -> AIMessage:
        """Make an attempt, and make it again after a pause that cut it."""
        while True:
            try:
                return await self._attempt_once(attempt)
            except WorkCut:
                self.note_retry(Retry(attempt, 0.0, ModelFailed(self._port.name, "a pause cut the request")))

    async def _attempt_once(self, attempt: int) -> AIMessage:
        """Make a request: its reply comes whole, or in chunks, which are provisional until the message is complete."""
        hold, max_tokens, messages = await self._reserve(attempt)
        bound, clock = self._bound_tools.bound, self._port._clock
        chunks: list[AIMessageChunk] = []
        reply: AIMessage | None = None
        try:
            with self._context.cuts.cuttable():
                if self.pieces is None:
                    reply = await complete(bound, messages, max_tokens=max_tokens, clock=clock)
                else:
                    async for chunk in stream_reply(
                        bound, messages, max_tokens=max_tokens, clock=clock, usage=self._usage
                    ):
                        chunks.append(chunk)
                        self.pieces.put_nowait(chunk)
            if reply is None:
                reply = merge(chunks, self._port.name)
        except BaseException as error:
            if chunks:
                self._discard(str(error))
            self._account.settle_failed(hold, error, has_output=bool(chunks))
            raise
        self._account.settle(hold, reply)
        return reply

    def _discard(self, reason: str) -> None:
        """Record that the chunks so far belong to no reply; those that nobody has read yet never come."""
        while self.pieces is not None and not self.pieces.empty():
            self.pieces.get_nowait()
        self._context.emit(MessageDiscarded, step_id=self._request.step, reason=reason[:500])

    def note_retry(self, retry: Retry) -> None:
        """Record a wait before it begins."""
        self._context.emit(
            ModelRetried,
            step_id=self._request.step,
            model=self._port.name,
            reason=str(retry.failure)[:500],
            attempt=retry.attempt,
            wait_s=round(retry.wait_s, 3),
        )

    def note_window(self, window: QuotaWindow) -> None:
        """Record until when the provider refuses all requests."""
        clock = self._port._clock
        wait_s = round(window.until_s - clock.monotonic(), 3)
        self._context.emit(
            QuotaReached, model=self._port.name, until=clock.now() + timedelta(seconds=wait_s), wait_s=wait_s
        )

    def _add_budget_note(self) -> Account:
        """Put the present note behind the last message of the request, where no cached prefix of it changes.

        A message of a user is what each provider accepts there: one after the results of tools becomes, for those that
        want both in one message, the text behind the results.
        """
        assert self._context.budget_note is not None, "the run's model reads it"
        if note := self._context.budget_note():
            self._request = replace(self._plain, messages=[*self._plain.messages, HumanMessage(content=note)])
            self._account = Account(self._port.provider, self._context, self._request, self._input_tokens)
        return self._account

    def _input_tokens(self) -> int:
        return input_bound(self._request.messages, self._bound_tools.schema_bytes)

    async def _wait_in_line(self, wait: Awaitable[None]) -> None:
        await (wait if self._context.wait_without_time is None else self._context.wait_without_time(wait))

    async def _reserve(self, attempt: int) -> _Reserved:
        """Return a reservation that is recorded durably before any request is sent."""
        reserve = lambda: self._account.reserve(attempt)  # noqa: E731 - the usual case is without a note
        if self._context.budget_note is not None and not (self._plain.is_final_answer or self._plain.is_side_request):
            reserve = lambda: self._add_budget_note().reserve(attempt)  # noqa: E731
        hold, max_tokens = await self._context.reserve(reserve, lambda reserved: self._account.refund(reserved[0]))
        try:
            with self._context.cuts.cuttable():
                messages = await with_data(self._request.messages, self._context.load_blob)
                await self._context.wait_persisted()
        except BaseException:
            self._account.refund(hold)
            raise
        return _Reserved(hold, max_tokens, messages)
