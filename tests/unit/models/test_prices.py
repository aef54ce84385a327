"""Prices of tokens."""

from __future__ import annotations

from typing import cast

import pytest
from langchain_core.messages.ai import InputTokenDetails, UsageMetadata

from ramet.core.errors import InvalidValue, Unknown
from ramet.models.prices import PRICES, Price, cost_usd, max_usd, price_of


def usage(input_tokens: int, output_tokens: int = 0, **details: int) -> UsageMetadata:
    return UsageMetadata(
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        total_tokens=input_tokens + output_tokens,
        input_token_details=cast(InputTokenDetails, details),
    )


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5@20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-20250514", "claude-sonnet-4"),
        ("anthropic:claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("anthropic/claude-opus-5", "claude-opus-5"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("gpt-5-mini", "gpt-5-mini"),
        ("openai/gpt-5-mini-2025-08-07", "gpt-5-mini"),
        ("GPT-4o", "gpt-4o"),
        ("models/gemini-2.5-pro-preview-05-06", "gemini-2.5-pro"),
        ("gemini-3.1-pro-preview", "gemini-3.1-pro"),
        ("scripted", "scripted"),
    ],
)
def test_a_model_and_its_dated_version_have_one_price(name: str, key: str) -> None:
    """Clouds and routers may put something before the name."""
    assert price_of(name) is PRICES[key]


@pytest.mark.parametrize(
    "name",
    ["gpt-5-super", "gpt-50", "gpt-5.9", "claude-opus-4-9", "claude-sonnet-6", "my-model", "", "o", "x" * 10_000],
)
def test_a_similar_name_is_unknown(name: str) -> None:
    """The price of another model would be wrong: gpt-5-pro costs twelve times gpt-5."""
    with pytest.raises(Unknown, match="price"):
        price_of(name)


def test_users_extend_the_table_with_their_own() -> None:
    """Keys of users go first where they are longer, and may end in a star."""
    prices = {**PRICES, "acme-*": Price(7, 8), "acme-large": Price(1, 2), "gpt-5": Price(0, 0)}

    assert price_of("acme-large", prices) == Price(1, 2)
    assert price_of("acme-large-2026-01-01", prices) == Price(1, 2)
    assert price_of("acme-small", prices) == Price(7, 8)
    assert price_of("gpt-5", prices) == Price(0, 0)
    assert price_of("gpt-5") != Price(0, 0)


def test_the_table_itself_cannot_be_changed() -> None:
    """Everybody in the process shares it."""
    with pytest.raises(TypeError):
        PRICES["gpt-5"] = Price(0, 0)  # type: ignore[index]


def test_cached_tokens_are_part_of_the_input_at_their_own_price() -> None:
    """LangChain counts so: input_tokens holds reads from the cache and writes to it."""
    price = Price(3, 15, cache_read=0.3, cache_write=3.75, cache_write_1h=6)

    assert cost_usd(usage(MILLION, MILLION), price) == pytest.approx(18)
    assert cost_usd(usage(MILLION, cache_read=MILLION), price) == pytest.approx(0.3)
    assert cost_usd(usage(MILLION, cache_creation=MILLION), price) == pytest.approx(3.75)
    assert cost_usd(usage(MILLION, cache_creation=0, ephemeral_5m_input_tokens=MILLION), price) == pytest.approx(3.75)
    assert cost_usd(usage(MILLION, ephemeral_1h_input_tokens=MILLION), price) == pytest.approx(6)
    assert cost_usd(usage(MILLION, cache_read=500_000), price) == pytest.approx(1.65)
    assert cost_usd(usage(MILLION, priority_cache_read=MILLION), price) == pytest.approx(0.3)


def test_missing_cache_prices_are_those_of_input() -> None:
    """A missing price gives no discount."""
    assert cost_usd(usage(MILLION, cache_read=MILLION), Price(3, 15)) == pytest.approx(3)


def test_invalid_details_never_make_a_cost_negative() -> None:
    """A provider that reports more cached tokens than input tokens gives no money back."""
    assert cost_usd(usage(0, cache_read=-5), Price(3, 15, 0.3)) == 0
    assert cost_usd(usage(10, cache_read=MILLION), Price(3, 15, 0.3)) >= 0


def test_long_input_costs_more_for_the_whole_request() -> None:
    """Above the threshold, every token of the request costs more."""
    haiku = price_of("claude-haiku-5-5")

    assert cost_usd(usage(100_000), haiku) == pytest.approx(0.01)
    assert cost_usd(usage(100_001), haiku) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("name", sorted(PRICES))
def test_no_request_costs_more_than_its_reservation(name: str) -> None:
    """Any part of the input may be read from the cache or written to it, below the threshold and above."""
    price = PRICES[name]
    for tokens in (10, 150_000, 900_000):
        for details in ({}, {"cache_read": tokens}, {"cache_creation": tokens}, {"ephemeral_1h_input_tokens": tokens}):
            assert cost_usd(usage(tokens, 500, **details), price) <= max_usd(tokens, 500, price) + 1e-12


def test_local_models_cost_nothing() -> None:
    """The scripted and the offline model ask no provider."""
    for name in ("scripted", "offline"):
        assert cost_usd(usage(MILLION, MILLION), price_of(name)) == 0


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_an_invalid_price_is_refused(wrong: float) -> None:
    """NaN would make every budget look unused."""
    with pytest.raises(InvalidValue, match="price"):
        Price(wrong, 1)
    with pytest.raises(InvalidValue, match="cache_read"):
        Price(1, 1, cache_read=wrong)
