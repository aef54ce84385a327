"""Reservations for requests of models, and their settlement: on record, whoever makes them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

from ramet.core.budget import Amount, Hold
from ramet.core.errors import BudgetExceeded, ModelFailed, Unknown
from ramet.core.events import ModelAsked, ModelCharged
from ramet.core.outcome import NOTHING_USED, Usage
from ramet.models.messages import input_bound
from ramet.models.prices import Price, cost_usd, most_usd, price_of
from ramet.tools.context import ModelRequest, ToolUseContext

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

#: Output tokens reserved for a reply where neither the request nor the model names a limit, and a budget counts tokens.
DEFAULT_OUTPUT_TOKENS = 4_096
#: A reply shorter than this says nothing: with less left, the call is not started.
LEAST_OUTPUT_TOKENS = 16


class Provider:
    """The most that a request of one model may use, and what that costs."""

    __slots__ = ("_is_looked_up", "_price", "_prices", "name", "output_limit", "requests")

    def __init__(
        self, name: str, requests: int, output_limit: Callable[[], int | None], prices: Mapping[str, Price]
    ) -> None:
        self.name, self.requests, self.output_limit, self._prices = name, requests, output_limit, prices
        self._price: Price | None = None
        self._is_looked_up = False

    def price(self) -> Price:
        """Return the price of a use. Raises Unknown where nobody knows it."""
        price = self.known_price()
        # The error is made anew each time: one that is kept keeps every frame that it was ever raised through.
        return price if price is not None else price_of(self.name, self._prices)

    def known_price(self) -> Price | None:
        """Return the price of a use, looked up once; None where nobody knows it."""
        if not self._is_looked_up:
            with contextlib.suppress(Unknown):
                self._price = price_of(self.name, self._prices)
            self._is_looked_up = True
        return self._price


class Account:
    """One request of one run, over all its attempts: what is reserved for it, and what it has used.

    A reply is made shorter where less is left than it may be long; a request that `is_whole` is refused there.
    """

    __slots__ = ("_context", "_is_whole", "_provider", "_request", "_schema_bytes")

    def __init__(
        self,
        provider: Provider,
        context: ToolUseContext,
        request: ModelRequest,
        schema_bytes: Callable[[], int],
        *,
        is_whole: bool = False,
    ) -> None:
        self._provider, self._context, self._request = provider, context, request
        self._schema_bytes, self._is_whole = schema_bytes, is_whole

    def reserve(self, attempt: int) -> tuple[Hold, int | None]:
        """Hold the most that this attempt can use; say how long the reply may be."""
        budget, request, provider = self._context.budget, self._request, self._provider
        calls, tokens, usd, max_tokens = provider.requests, 0, 0.0, request.max_tokens
        tokens_left = budget.left("tokens", last_word=request.last_word)
        usd_left = budget.left("usd", last_word=request.last_word)
        if tokens_left != math.inf or usd_left != math.inf:
            bound = input_bound(request.messages, self._schema_bytes())
            asked = request.max_tokens or provider.output_limit() or DEFAULT_OUTPUT_TOKENS
            room = tokens_left - bound
            price = None
            if usd_left != math.inf:
                price = provider.price()
                spare = usd_left - most_usd(bound, 0, price)
                per_token = most_usd(bound, 1, price) - most_usd(bound, 0, price)
                room = min(room, spare / per_token if per_token > 0 else (math.inf if spare >= 0 else -1))
            if self._is_whole:
                max_tokens = asked
            elif room >= min(asked, LEAST_OUTPUT_TOKENS):
                max_tokens = int(min(asked, room))
            else:
                max_tokens = min(asked, LEAST_OUTPUT_TOKENS)
            tokens = (bound + max_tokens) * calls
            usd = most_usd(bound, max_tokens, price) * calls if price is not None else 0.0
        hold = budget.reserve(Amount(tokens=tokens, usd=usd, model_calls=calls), last_word=request.last_word)
        self._context.emit(
            ModelAsked,
            step_id=request.step,
            model=provider.name,
            attempt=attempt,
            reserved_tokens=tokens,
            requests=calls,
            **({"reserved_usd": usd} if usd else {}),
        )
        return hold, max_tokens

    def settle(self, hold: Hold, reply: AIMessage) -> None:
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

    def settle_failed(self, hold: Hold, error: BaseException, *, heard: bool = False) -> None:
        """Settle a request that brought no reply.

        One that no provider can have received costs nothing. One that was refused by the provider costs a call. One
        that was cut off may have cost all it could.
        """
        if isinstance(error, ModelFailed) and error.unsent and not heard and self._provider.requests == 1:
            self.refund(hold)
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

    def refund(self, hold: Hold) -> None:
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
        price = self._provider.known_price()
        return cost_usd(said, price) if price is not None else 0.0  # No money limit here: `reserve` would have raised.


class ForeignCharge:
    """The reservation for a request that another framework makes, until the first word of its end."""

    __slots__ = ("_account", "_hold")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._hold: Hold | None = account.reserve(1)[0]

    def settle(self, reply: AIMessage) -> None:
        """Count what the reply says was used, or the reservation where it says nothing."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._account.settle(hold, reply)

    def fail(self, error: BaseException) -> None:
        """Count a request that brought no reply."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._account.settle_failed(hold, error)
