"""The way to the models: reserves, waits at the gate, asks, retries, settles. Keys and clients stay on this side."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Collection, Mapping
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.utils.function_calling import convert_to_openai_tool

from ramet.concurrency.clock import Clock
from ramet.core.budget import Amount, Hold
from ramet.core.errors import BudgetExceeded, InvalidValue, ModelFailed, Unknown
from ramet.core.events import MessageDiscarded, ModelAsked, ModelCharged, ModelRetried
from ramet.core.outcome import NOTHING_USED, Usage
from ramet.models.credentials import check_key
from ramet.models.gate import Gates, Retry, RetryPolicy
from ramet.models.messages import input_bound
from ramet.models.prices import PRICES, Price, cost_usd, most_usd, price_of
from ramet.models.reply import Bound, ask, bind, merge, output_limit, stream_reply
from ramet.models.resolve import model_name, resolve
from ramet.models.retries import without_retries
from ramet.models.stream_usage import UsageRefused
from ramet.spawn.services import ModelPort
from ramet.tools.context import ModelRequest, ToolUseContext

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages.ai import UsageMetadata
    from langchain_core.tools import BaseTool

#: Output tokens reserved for a reply where neither the request nor the model names a limit, and a budget counts tokens.
DEFAULT_OUTPUT_TOKENS = 4_096
#: Lists of tools that a model stays bound to.
MAX_SHOWN = 1_000
#: A reply shorter than this says nothing: with less left, the call is not started.
LEAST_OUTPUT_TOKENS = 16


class Gateway:
    """One per runtime: the models it has resolved, and the gates that all its agents share."""

    def __init__(
        self, clock: Clock, *, prices: Mapping[str, Price] | None = None, retry: RetryPolicy | None = None
    ) -> None:
        self._clock = clock
        self._prices = {**PRICES, **(prices or {})}
        self._gates = Gates(clock=clock, policy=retry)
        #: Names of models that runs may ask for; None is any. Model objects are the host's own word.
        self.accepted: Collection[str] | None = None
        self._by_name: dict[str, _Port] = {}
        self._by_object: WeakValueDictionary[int, _Port] = WeakValueDictionary()  # a port keeps its model

    def port(self, model: str | BaseChatModel) -> ModelPort:
        """A model as runs reach it. Raises Unknown or MissingExtra for a name that leads nowhere.

        Raises InvalidValue for one that is not accepted, ModelFailed for one that has no key.
        """
        if isinstance(model, str):
            if self.accepted is not None and model not in self.accepted:
                raise InvalidValue("model", model, f"one of {', '.join(sorted(self.accepted)) or 'none'}")
            found = self._by_name.get(model)
            if found is None:
                found = self._by_name[model] = self._made(resolve(model))
        else:
            found = self._by_object.get(id(model))
            if found is None:
                found = self._by_object[id(model)] = self._made(model)
        return ModelPort(found.ask, found.name, found.window)

    def _made(self, model: BaseChatModel) -> _Port:
        check_key(model)
        return _Port(model, self._gates, self._prices, self._clock)


class _Shown:
    """A model bound to a list of tools. It keeps the tools, so that their identity stays their own."""

    def __init__(self, tools: tuple[BaseTool, ...], bound: Bound) -> None:
        self.tools, self.bound = tools, bound

    @cached_property
    def schema_bytes(self) -> int:
        """What showing the tools takes of a prompt, at most; counted only where a budget asks."""
        return sum(len(json.dumps(convert_to_openai_tool(tool)).encode()) for tool in self.tools)


class _Port:
    """One model: bound to each list of tools once, asked through its gate."""

    def __init__(self, model: BaseChatModel, gates: Gates, prices: Mapping[str, Price], clock: Clock) -> None:
        self._owner = model
        self._model, self._requests = without_retries(model)
        self.name = model_name(model)
        self._gate = gates.of(self.name)
        self._prices, self._clock = prices, clock
        self.window: int | None = (self._model.profile or {}).get("max_input_tokens")
        self._price: Price | Unknown | None = None  #: looked up once
        self._shown: dict[tuple[int, ...], _Shown] = {}

    async def ask(self, context: ToolUseContext, request: ModelRequest) -> AsyncGenerator[AIMessageChunk | AIMessage]:
        """Ask until there is a reply or no hope: yields chunks as they come, then the whole message.

        Raises BudgetExceeded before a request that does not fit, ModelFailed after the last attempt.
        """
        shown = self._show(request)
        call = _Call(self, context, request, shown)
        if not shown.bound.streams:
            yield await self._gate.call(call.whole, before_wait=call.note_retry)
            return
        pieces: asyncio.Queue[AIMessageChunk | None] = asyncio.Queue()
        call.pieces = pieces

        async def run() -> AIMessage:
            try:
                return await self._gate.call(call.streamed, before_wait=call.note_retry)
            finally:
                pieces.put_nowait(None)

        asking = asyncio.create_task(run(), name=f"{context.run.path}: model")
        try:
            while (piece := await pieces.get()) is not None:
                yield piece
            yield await asking
        finally:
            if not asking.done():
                asking.cancel()
                await asyncio.wait([asking])
            if not asking.cancelled():
                asking.exception()  # Seen, even where the reader left before it was raised here.

    def _show(self, request: ModelRequest) -> _Shown:
        key = tuple(map(id, request.tools))  # `_Shown` keeps the tools, so that no id is used again
        shown = self._shown.get(key)
        if shown is None:
            tools = tuple(request.tools)
            shown = self._shown[key] = _Shown(tools, bind(self._model, tools))
            if len(self._shown) > MAX_SHOWN:
                del self._shown[next(iter(self._shown))]
        return shown

    def price(self) -> Price:
        """What it costs. Raises Unknown where money is limited and nobody knows."""
        if self._price is None:
            try:
                self._price = price_of(self.name, self._prices)
            except Unknown as unknown:
                self._price = unknown
        if isinstance(self._price, Unknown):
            raise self._price
        return self._price


class _Call:
    """One request of one run, over all its attempts."""

    __slots__ = ("_context", "_port", "_request", "_shown", "_usage", "pieces")

    def __init__(self, port: _Port, context: ToolUseContext, request: ModelRequest, shown: _Shown) -> None:
        self._port, self._context, self._request, self._shown = port, context, request, shown
        self._usage = True  #: False once an attempt was refused that had asked for the usage of its stream
        self.pieces: asyncio.Queue[AIMessageChunk | None] | None = None

    async def whole(self, attempt: int) -> AIMessage:
        """One attempt that brings the reply in one piece."""
        hold, max_tokens = await self._reserved(attempt)
        try:
            reply = await ask(self._shown.bound, self._request.messages, max_tokens=max_tokens, clock=self._port._clock)
        except BaseException as error:
            self._settle_failed(hold, error)
            raise
        self._settle(hold, reply)
        return reply

    async def streamed(self, attempt: int) -> AIMessage:
        """One attempt whose chunks are handed on as they come; they are provisional until the message is whole.

        An endpoint that refuses being asked for usage is asked again at once without, by a request that is reserved and
        counted like any other.
        """
        try:
            return await self._streamed(attempt)
        except UsageRefused as refused:
            self.note_retry(Retry(attempt, 0.0, refused))
        self._usage = False
        return await self._streamed(attempt)

    async def _streamed(self, attempt: int) -> AIMessage:
        hold, max_tokens = await self._reserved(attempt)
        chunks: list[AIMessageChunk] = []
        assert self.pieces is not None
        try:
            async for chunk in stream_reply(
                self._shown.bound,
                self._request.messages,
                max_tokens=max_tokens,
                clock=self._port._clock,
                usage=self._usage,
            ):
                chunks.append(chunk)
                self.pieces.put_nowait(chunk)
            reply = merge(chunks, self._port.name)
        except BaseException as error:
            if chunks:
                self._context.emit(MessageDiscarded, step_id=self._request.step, reason=str(error)[:500])
            self._settle_failed(hold, error, heard=bool(chunks))
            raise
        self._settle(hold, reply)
        return reply

    def note_retry(self, retry: Retry) -> None:
        """Put a wait on record before it begins."""
        self._context.emit(
            ModelRetried,
            step_id=self._request.step,
            model=self._port.name,
            reason=str(retry.failed)[:500],
            attempt=retry.attempt,
            wait_s=round(retry.wait_s, 3),
        )

    async def _reserved(self, attempt: int) -> tuple[Hold, int | None]:
        """A reservation that is on record for good before anything is asked."""
        hold, max_tokens = self._reserve(attempt)
        try:
            await self._context.settled()
        except BaseException:
            self._refund(hold)
            raise
        return hold, max_tokens

    def _reserve(self, attempt: int) -> tuple[Hold, int | None]:
        """Hold the most that this attempt can use; says how long the reply may be."""
        budget, request, port = self._context.budget, self._request, self._port
        calls, tokens, usd, max_tokens = port._requests, 0, 0.0, request.max_tokens
        tokens_left = budget.left("tokens", last_word=request.last_word)
        usd_left = budget.left("usd", last_word=request.last_word)
        if tokens_left != math.inf or usd_left != math.inf:
            bound = input_bound(request.messages, self._shown.schema_bytes)
            asked = request.max_tokens or output_limit(port._model) or DEFAULT_OUTPUT_TOKENS
            room = tokens_left - bound
            price = None
            if usd_left != math.inf:
                price = port.price()
                spare = usd_left - most_usd(bound, 0, price)
                per_token = most_usd(bound, 1, price) - most_usd(bound, 0, price)
                room = min(room, spare / per_token if per_token > 0 else (math.inf if spare >= 0 else -1))
            max_tokens = (
                int(min(asked, room)) if room >= min(asked, LEAST_OUTPUT_TOKENS) else min(asked, LEAST_OUTPUT_TOKENS)
            )
            tokens = (bound + max_tokens) * calls
            usd = most_usd(bound, max_tokens, price) * calls if price is not None else 0.0
        hold = budget.reserve(Amount(tokens=tokens, usd=usd, model_calls=calls), last_word=request.last_word)
        self._context.emit(
            ModelAsked,
            step_id=request.step,
            model=port.name,
            attempt=attempt,
            reserved_tokens=tokens,
            requests=calls,
            **({"reserved_usd": usd} if usd else {}),
        )
        return hold, max_tokens

    def _settle(self, hold: Hold, reply: AIMessage) -> None:
        """Count what the provider says was used; what it does not say is counted as reserved, and marked."""
        said = reply.usage_metadata
        if said is None:
            most = hold.amount
            usage = Usage(model_calls=most.model_calls, output_tokens=most.tokens, usd=most.usd, estimated=True)
            self._spend(hold, usage, is_kept=not self._request.aside)
            return
        details = said.get("input_token_details") or {}
        usage = Usage(
            model_calls=hold.amount.model_calls,  # More than one where the client may have tried by itself.
            input_tokens=said["input_tokens"],
            output_tokens=said["output_tokens"],
            cache_read_tokens=details.get("cache_read") or 0,
            usd=self._cost(said),
        )
        self._spend(hold, usage, is_kept=not self._request.aside)

    def _settle_failed(self, hold: Hold, error: BaseException, *, heard: bool = False) -> None:
        """Settle a request that brought no reply.

        One that no provider can have received costs nothing. One that was refused by the provider costs a call. One
        that was cut off may have cost all it could.
        """
        if isinstance(error, ModelFailed) and error.unsent and not heard and self._port._requests == 1:
            self._refund(hold)
            return
        refused = isinstance(error, ModelFailed) and error.status is not None and not heard
        if refused or isinstance(error, BudgetExceeded):
            usage = Usage(model_calls=hold.amount.model_calls)
        else:
            usage = Usage(
                model_calls=hold.amount.model_calls,
                output_tokens=hold.amount.tokens,
                usd=hold.amount.usd,
                estimated=True,
            )
        self._spend(hold, usage, is_kept=False)

    def _refund(self, hold: Hold) -> None:
        """Give back all of a reservation, on record: nothing was sent."""
        hold.refund()
        self._context.emit(ModelCharged, step_id=self._request.step, usage=NOTHING_USED)

    def _spend(self, hold: Hold, usage: Usage, *, is_kept: bool) -> None:
        """Count it. A reply that is kept goes on record with what it used; any other request's use does by itself."""
        hold.settle(Amount(tokens=usage.tokens, usd=usage.usd, model_calls=usage.model_calls))
        self._context.last_usage = usage
        self._context.spend(usage)
        if not is_kept:
            self._context.emit(ModelCharged, step_id=self._request.step, usage=usage)

    def _cost(self, said: UsageMetadata) -> float:
        try:
            return cost_usd(said, self._port.price())
        except Unknown:
            return 0.0  # Nobody limits money here: `_reserve` would have raised.
