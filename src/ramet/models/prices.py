"""The prices of tokens in US dollars per million, from the providers' price pages in November 2026.

The table is a value: `{**PRICES, "my-model": Price(1, 5)}` extends it, and works wherever a table is accepted. A key
matches its model and that model's dated versions ("gpt-5" also matches "gpt-5-2025-08-07", never "gpt-5-pro"). A key
that ends in * matches every name with that prefix. The longest matching key wins. A name without a match raises
Unknown: uncountable costs are not counted as zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from ramet.core.errors import InvalidValue, Unknown

if TYPE_CHECKING:  # LangChain takes 0.4 s to import, and only its type is needed
    from langchain_core.messages.ai import UsageMetadata


@dataclass(frozen=True)
class Price:
    """US dollars per million tokens."""

    input: float
    output: float
    cache_read: float | None = None  #: None: as `input`
    cache_write: float | None = None  #: None: as `input`
    cache_write_1h: float | None = None  #: None: as `cache_write`
    long_threshold: int | None = (
        None  #: number of input tokens above which the prices of `long` apply to the whole request
    )
    long: Price | None = None

    def __post_init__(self) -> None:
        for name in ("input", "output", "cache_read", "cache_write", "cache_write_1h"):
            dollars = getattr(self, name)
            if dollars is not None and not (isfinite(dollars) and dollars >= 0):
                raise InvalidValue(f"price.{name}", dollars, "US dollars for a million tokens, 0 or more")


def price_of(model: str, prices: Mapping[str, Price] | None = None) -> Price:
    """Return the price of a model. Raises Unknown if no key of the table matches its name."""
    table = PRICES if prices is None else prices
    for name in _spellings(model):
        fitting = [key for key in table if _fits(key, name)]
        if fitting:
            return table[max(fitting, key=lambda key: len(key.rstrip("*")))]
    raise Unknown("price of the model", model, tuple(table))


def cost_usd(usage: UsageMetadata, price: Price) -> float:
    """Return the cost of this usage. Cached tokens are part of `input_tokens`, as LangChain reports them."""
    total = usage["input_tokens"]
    if price.long is not None and price.long_threshold is not None and total > price.long_threshold:
        price = price.long
    details = usage.get("input_token_details") or {}
    read_tokens = written_tokens = written_1h_tokens = 0
    for name, tokens in details.items():
        if not isinstance(tokens, int) or tokens <= 0:
            continue
        if name.endswith("cache_read"):  # OpenAI's service tiers prefix the name
            read_tokens += tokens
        elif name == "ephemeral_1h_input_tokens":
            written_1h_tokens += tokens
        elif name.endswith("cache_creation") or name == "ephemeral_5m_input_tokens":
            written_tokens += tokens
    uncached_tokens = max(0, total - read_tokens - written_tokens - written_1h_tokens)
    write = price.input if price.cache_write is None else price.cache_write
    dollars = (
        uncached_tokens * price.input
        + read_tokens * (price.input if price.cache_read is None else price.cache_read)
        + written_tokens * write
        + written_1h_tokens * (write if price.cache_write_1h is None else price.cache_write_1h)
        + usage["output_tokens"] * price.output
    )
    return dollars / 1_000_000


def max_usd(input_tokens: int, output_tokens: int, price: Price) -> float:
    """Return the maximum cost of a request with these tokens, however its input is cached: a budget reserves this."""
    if price.long is not None and price.long_threshold is not None and input_tokens > price.long_threshold:
        price = price.long
    dearest = max(price.input, price.cache_write or 0.0, price.cache_write_1h or 0.0, price.cache_read or 0.0)
    return (input_tokens * dearest + output_tokens * price.output) / 1_000_000


#: "-20250929", "@20250929", "-2025-08-07", "-001", "-v1:0", "-latest", "-preview-05-20": versions, not other models.
_VERSION: Final = re.compile(
    r"(?:[-@](?:\d{8}|\d{4}-\d{2}-\d{2}|\d{3}|v\d+(?::\d+)?|latest|default|(?:preview|exp)(?:-\d{2}-\d{2,4})?))*"
)


def _fits(key: str, name: str) -> bool:
    if key.endswith("*"):
        return name.startswith(key[:-1])
    if not name.startswith(key):
        return False
    suffix = name[len(key) :]
    return not suffix or (suffix[0] in "-@" and _VERSION.fullmatch(suffix) is not None)


def _spellings(model: str) -> tuple[str, ...]:
    """Return the name as given, and without prefixes of routers and clouds ("us.anthropic.", "openai/", "openai:")."""
    name = model.strip().lower()
    bare = name.rpartition("/")[2]
    without_provider = bare.partition(":")[2] if ":" in bare and not bare[bare.index(":") + 1 :].isdigit() else bare
    without_cloud = re.sub(r"^(?:[a-z-]+\.)*(anthropic|amazon|meta|mistral|openai)\.", "", bare)
    return tuple(dict.fromkeys((name, bare, without_provider, without_cloud)))


def _anthropic(input: float, output: float, cache_read: float, long: Price | None = None) -> Price:
    # Five minutes in the cache cost 25 % more than plain input, an hour twice as much.
    long_threshold = None if long is None else 100_000
    return Price(input, output, cache_read, input * 1.25, input * 2, long_threshold, long)


def _openai_long(input: float, output: float, cache_read: float, cache_write: float | None = None) -> Price:
    # Above 272,000 tokens of input the whole request costs twice for input and 1.5 times for output.
    double = Price(input * 2, output * 1.5, cache_read * 2, None if cache_write is None else cache_write * 2)
    return Price(input, output, cache_read, cache_write, long_threshold=272_000, long=double)


def _gemini_pro(input: float, output: float, cache_read: float) -> Price:
    # Above 200,000 tokens of input: twice for input, 1.5 times for output.
    return Price(input, output, cache_read, long_threshold=200_000, long=Price(input * 2, output * 1.5, cache_read * 2))


PRICES: Final[Mapping[str, Price]] = MappingProxyType(
    {
        "scripted": Price(0, 0),
        "offline": Price(0, 0),
        "claude-fable-5-1": _anthropic(10, 50, 0.25),
        "claude-mythos-5-1": _anthropic(10, 50, 0.25),
        "claude-fable-5": _anthropic(10, 50, 1),
        "claude-mythos-5": _anthropic(10, 50, 1),
        "claude-opus-5-5": _anthropic(4, 20, 0.2),
        "claude-opus-5": _anthropic(5, 25, 0.5),
        "claude-opus-4-8": _anthropic(5, 25, 0.5),
        "claude-opus-4-7": _anthropic(5, 25, 0.5),
        "claude-opus-4-6": _anthropic(5, 25, 0.5),
        "claude-opus-4-5": _anthropic(5, 25, 0.5),
        "claude-opus-4-1": _anthropic(15, 75, 1.5),
        "claude-opus-4": _anthropic(15, 75, 1.5),
        "claude-sonnet-5-5": _anthropic(2, 10, 0.1),
        "claude-sonnet-5": _anthropic(2, 10, 0.2),
        "claude-sonnet-4-6": _anthropic(3, 15, 0.3),
        "claude-sonnet-4-5": _anthropic(3, 15, 0.3),
        "claude-sonnet-4": _anthropic(3, 15, 0.3),
        "claude-haiku-5-5": _anthropic(0.1, 0.5, 0.01, long=_anthropic(0.5, 2.5, 0.05)),
        "claude-haiku-4-5": _anthropic(1, 5, 0.1),
        "claude-3-5-haiku": _anthropic(0.8, 4, 0.08),
        "gpt-6.1-sol": _openai_long(2, 10, 0.1),
        "gpt-6-astra": _openai_long(10, 50, 1, 12.5),
        "gpt-6-sol": _openai_long(2, 10, 0.2, 2.5),
        "gpt-6-luna": _openai_long(0.1, 0.5, 0.01, 0.125),
        "gpt-5.6-sol": _openai_long(4, 20, 0.4),
        "gpt-5.6-terra": _openai_long(2, 12, 0.2),
        "gpt-5.6-luna": _openai_long(0.2, 1.2, 0.02),
        "gpt-5.5-pro": _openai_long(30, 180, 30),
        "gpt-5.5": _openai_long(5, 30, 0.5),
        "gpt-5.4-pro": _openai_long(30, 180, 30),
        "gpt-5.4-mini": Price(0.75, 4.5, 0.075),
        "gpt-5.4-nano": Price(0.2, 1.25, 0.02),
        "gpt-5.4": _openai_long(2.5, 15, 0.25),
        "gpt-5.1": Price(1.25, 10, 0.125),
        "gpt-5-mini": Price(0.25, 2, 0.025),
        "gpt-5-nano": Price(0.05, 0.4, 0.005),
        "gpt-5-pro": Price(15, 120),
        "gpt-5": Price(1.25, 10, 0.125),
        "gpt-4.1-mini": Price(0.4, 1.6, 0.1),
        "gpt-4.1-nano": Price(0.1, 0.4, 0.025),
        "gpt-4.1": Price(2, 8, 0.5),
        "gpt-4o-mini": Price(0.15, 0.6, 0.075),
        "gpt-4o": Price(2.5, 10, 1.25),
        "o3": Price(2, 8, 0.5),
        "o4-mini": Price(1.1, 4.4, 0.275),
        "gemini-3.5-flash": Price(1.5, 9),
        "gemini-3.1-pro": _gemini_pro(2, 12, 0.2),
        "gemini-3.1-flash-lite": Price(0.25, 1.5),
        "gemini-3-flash": Price(0.5, 3),
        "gemini-2.5-pro": _gemini_pro(1.25, 10, 0.125),
        "gemini-2.5-flash-lite": Price(0.1, 0.4),
        "gemini-2.5-flash": Price(0.3, 2.5),
    }
)
