"""Reservations for model requests, and their settlement. Both are recorded, whichever component makes the request."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from langchain_core.messages import AIMessage

from ramet.core.budget import Budget, Hold
from ramet.core.errors import BudgetExceeded, ModelFailed, Unknown
from ramet.core.events import ModelAsked, ModelCharged
from ramet.core.limits import Amount
from ramet.core.outcome import NO_USAGE, Usage
from ramet.models.prices import Price, cost_usd, max_usd, price_of
from ramet.models.providers.reported_usage import is_credible
from ramet.tools.context import ToolUseContext
from ramet.tools.model_request import ModelRequest

if TYPE_CHECKING:
    from langchain_core.messages.ai import UsageMetadata

#: Output tokens reserved for a reply if neither the request nor the model names a limit, and a budget counts tokens.
DEFAULT_OUTPUT_TOKENS = 4_096
#: A reply shorter than this is useless: if fewer tokens are left, the call is not started.
LEAST_OUTPUT_TOKENS = 16


class Provider:
    """The upper bounds of a request to one model, and the price of its usage."""

    __slots__ = ("_is_looked_up", "_price", "_prices", "name", "output_limit", "requests")

    def __init__(
        self, name: str, requests: int, output_limit: Callable[[], int | None], prices: Mapping[str, Price]
    ) -> None:
        self.name, self.requests, self.output_limit, self._prices = name, requests, output_limit, prices
        self._price: Price | None = None
        self._is_looked_up = False

    def price(self) -> Price:
        """Return the price of the model's usage. Raises Unknown if the price is not known."""
        price = self.known_price()
        # The error is created each time: a stored error would keep every frame that it was raised through.
        return price if price is not None else price_of(self.name, self._prices)

    def known_price(self) -> Price | None:
        """Return the price of the model's usage, looked up once; None if the price is not known."""
        if not self._is_looked_up:
            with contextlib.suppress(Unknown):
                self._price = price_of(self.name, self._prices)
            self._is_looked_up = True
        return self._price


class Account:
    """The reservations and the usage of one request of one run, over all its attempts.

    If less is left than the reply may use, the reply's limit is lowered, but not below `least_output`. A request with
    `is_whole` is refused instead, and so is one at a limit that pauses: a raise helps it more than half a reply. One
    with `lowers_at_pause` is lowered there, too.
    """

    __slots__ = (
        "_context",
        "_input_tokens",
        "_is_whole",
        "_least_output",
        "_lowers_at_pause",
        "_provider",
        "_request",
    )

    def __init__(
        self,
        provider: Provider,
        context: ToolUseContext,
        request: ModelRequest,
        input_tokens: Callable[[], int],
        *,
        is_whole: bool = False,
        least_output: int = LEAST_OUTPUT_TOKENS,
        lowers_at_pause: bool = False,
    ) -> None:
        """`input_tokens` returns the bound of the request's input; it is called only if a budget needs it."""
        self._provider, self._context, self._request = provider, context, request
        self._input_tokens, self._is_whole = input_tokens, is_whole
        self._least_output, self._lowers_at_pause = least_output, lowers_at_pause

    def reserve(self, attempt: int) -> tuple[Hold, int | None]:
        """Reserve the most that this attempt can use.

        Returns the reservation and the output token limit of the reply.
        """
        budget, request, provider = self._context.budget, self._request, self._provider
        calls, tokens, usd, max_tokens = provider.requests, 0, 0.0, request.max_tokens
        tokens_left = budget.remaining("tokens", is_final_answer=request.is_final_answer)
        usd_left = budget.remaining("usd", is_final_answer=request.is_final_answer)
        if tokens_left != math.inf or usd_left != math.inf:
            bound = self._input_tokens()
            requested_tokens = request.max_tokens or provider.output_limit() or DEFAULT_OUTPUT_TOKENS
            available_tokens = tokens_left - bound
            price = None
            if usd_left != math.inf:
                price = provider.price()
                spare_usd = usd_left - max_usd(bound, 0, price)
                per_token = max_usd(bound, 1, price) - max_usd(bound, 0, price)
                available_tokens = min(
                    available_tokens, spare_usd / per_token if per_token > 0 else (math.inf if spare_usd >= 0 else -1)
                )
            if self._is_whole or (pauses(budget) and not self._lowers_at_pause):
                max_tokens = requested_tokens
            elif available_tokens >= min(requested_tokens, self._least_output):
                max_tokens = int(min(requested_tokens, available_tokens))
            else:
                max_tokens = min(requested_tokens, self._least_output)
            tokens = (bound + max_tokens) * calls
            usd = max_usd(bound, max_tokens, price) * calls if price is not None else 0.0
        hold = budget.reserve(
            Amount(tokens=tokens, usd=usd, model_calls=calls), is_final_answer=request.is_final_answer
        )
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
        """Settle the usage that the provider reports with its reply: see `settle_usage`."""
        self.settle_usage(hold, reply.usage_metadata)

    def settle_usage(self, hold: Hold, reported: UsageMetadata | None) -> None:
        """Settle the usage that the provider reports.

        Without a report, or with one without input, which each request has, the whole reservation is settled and marked
        as estimated. An output that is reported counts at least.
        """
        if reported is None or reported["input_tokens"] < 1:
            reserved, output_tokens, usd = hold.amount, 0, 0.0
            if reported is not None:
                output_tokens, usd = reported["output_tokens"], self._cost(reported)
            usage = Usage(
                model_calls=reserved.model_calls,
                output_tokens=max(reserved.tokens, output_tokens),
                usd=max(reserved.usd, usd),
                estimated=True,
            )
            self._spend(hold, usage, is_kept=not self._request.is_side_request)
            return
        details = reported.get("input_token_details") or {}
        usage = Usage(
            model_calls=hold.amount.model_calls,  # More than one where the client may have retried by itself.
            input_tokens=reported["input_tokens"],
            output_tokens=reported["output_tokens"],
            cache_read_tokens=details.get("cache_read") or 0,
            usd=self._cost(reported),
        )
        self._spend(hold, usage, is_kept=not self._request.is_side_request)

    def settle_failed(self, hold: Hold, error: BaseException, *, has_output: bool = False) -> None:
        """Settle a request that brought no reply.

        A request that no provider can have received costs nothing. A request that the provider refused costs one call.
        A request that was cut off may have cost its whole reservation.
        """
        if isinstance(error, ModelFailed) and error.unsent and not has_output and self._provider.requests == 1:
            self.refund(hold)
            return
        refused = isinstance(error, ModelFailed) and error.status is not None and not has_output
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
        """Return a whole reservation, and record that nothing was used: no request was sent."""
        hold.refund()
        self._context.emit(ModelCharged, step_id=self._request.step, usage=NO_USAGE)

    def _spend(self, hold: Hold, usage: Usage, *, is_kept: bool) -> None:
        """Settle a usage.

        A kept reply is recorded together with its usage; the usage of any other request is recorded alone.
        """
        hold.settle(Amount(tokens=usage.tokens, usd=usage.usd, model_calls=usage.model_calls))
        self._context.last_usage = usage
        self._context.spend(usage)
        if not is_kept:
            self._context.emit(ModelCharged, step_id=self._request.step, usage=usage)

    def _cost(self, reported: UsageMetadata) -> float:
        price = self._provider.known_price()
        # Without a price there is no money limit: `reserve` would have raised.
        return cost_usd(reported, price) if price is not None else 0.0


def pauses(budget: Budget) -> bool:
    """Return whether a limit of tokens or money pauses here."""
    return any(owner is not None and owner.pauses for owner in (budget.owner("tokens"), budget.owner("usd")))


class ForeignCharge:
    """The reservation for a request that another framework makes. It is settled once, by the first reported end."""

    __slots__ = ("_account", "_hold")

    def __init__(self, account: Account) -> None:
        self._account = account
        self._hold: Hold | None = account.reserve(1)[0]

    def settle(self, reply: AIMessage) -> None:
        """Settle the usage that the reply reports, or the whole reservation if it reports none that is credible."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._account.settle_usage(hold, reply.usage_metadata if is_credible(reply) else None)

    def cancel(self) -> None:
        """Return the whole reservation: the request was not sent."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._account.refund(hold)

    def fail(self, error: BaseException) -> None:
        """Settle a request that brought no reply."""
        hold, self._hold = self._hold, None
        if hold is not None:
            self._account.settle_failed(hold, error)
