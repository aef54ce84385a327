"""What tokens cost."""

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
def test_a_price_is_that_of_the_model_or_its_dated_version(name: str, key: str) -> None:
    """Clouds and routers may put something before it."""
    assert price_of(name) is PRICES[key]


@pytest.mark.parametrize(
    "name",
    ["gpt-5-super", "gpt-50", "gpt-5.9", "claude-opus-4-9", "claude-sonnet-6", "my-model", "", "o", "x" * 10_000],
)
def test_a_name_that_only_resembles_one_is_unknown(name: str) -> None:
    """Another model's price would be a wrong one: gpt-5-pro costs twelve times gpt-5."""
    with pytest.raises(Unknown, match="price"):
        price_of(name)


def test_users_extend_the_table_by_passing_another() -> None:
    """Their keys win where they are longer, and may end in a star."""
    prices = {**PRICES, "acme-*": Price(7, 8), "acme-large": Price(1, 2), "gpt-5": Price(0, 0)}

    assert price_of("acme-large", prices) == Price(1, 2)
    assert price_of("acme-large-2026-01-01", prices) == Price(1, 2)
    assert price_of("acme-small", prices) == Price(7, 8)
    assert price_of("gpt-5", prices) == Price(0, 0)
    assert price_of("gpt-5") != Price(0, 0)


def test_the_table_itself_cannot_be_changed() -> None:
    """It is shared by everybody in the process."""
    with pytest.raises(TypeError):
        PRICES["gpt-5"] = Price(0, 0)  # type: ignore[index]


def test_cached_tokens_are_part_of_the_input_at_their_own_price() -> None:
    """As LangChain counts: input_tokens holds what was read from the cache and written to it."""
    price = Price(3, 15, cache_read=0.3, cache_write=3.75, cache_write_1h=6)

    assert cost_usd(usage(MILLION, MILLION), price) == pytest.approx(18)
    assert cost_usd(usage(MILLION, cache_read=MILLION), price) == pytest.approx(0.3)
    assert cost_usd(usage(MILLION, cache_creation=MILLION), price) == pytest.approx(3.75)
    assert cost_usd(usage(MILLION, cache_creation=0, ephemeral_5m_input_tokens=MILLION), price) == pytest.approx(3.75)
    assert cost_usd(usage(MILLION, ephemeral_1h_input_tokens=MILLION), price) == pytest.approx(6)
    assert cost_usd(usage(MILLION, cache_read=500_000), price) == pytest.approx(1.65)
    assert cost_usd(usage(MILLION, priority_cache_read=MILLION), price) == pytest.approx(0.3)


def test_prices_that_are_not_told_apart_are_those_of_input() -> None:
    """No discount that nobody promised."""
    assert cost_usd(usage(MILLION, cache_read=MILLION), Price(3, 15)) == pytest.approx(3)


def test_details_that_make_no_sense_cost_nothing_less_than_zero() -> None:
    """A provider that reports more cached than input tokens gives no money back."""
    assert cost_usd(usage(0, cache_read=-5), Price(3, 15, 0.3)) == 0
    assert cost_usd(usage(10, cache_read=MILLION), Price(3, 15, 0.3)) >= 0


def test_long_input_costs_more_for_the_whole_request() -> None:
    """Above the threshold every token of it does."""
    haiku = price_of("claude-haiku-5-5")

    assert cost_usd(usage(100_000), haiku) == pytest.approx(0.01)
    assert cost_usd(usage(100_001), haiku) == pytest.approx(0.05, rel=1e-4)


@pytest.mark.parametrize("name", sorted(PRICES))
def test_no_request_costs_more_than_its_reservation(name: str) -> None:
    """Whatever part of the input is read from the cache or written to it, below the threshold and above."""
    price = PRICES[name]
    for tokens in (10, 150_000, 900_000):
        for details in ({}, {"cache_read": tokens}, {"cache_creation": tokens}, {"ephemeral_1h_input_tokens": tokens}):
            assert cost_usd(usage(tokens, 500, **details), price) <= max_usd(tokens, 500, price) + 1e-12


def test_what_asks_nobody_costs_nothing() -> None:
    """Scripted and offline."""
    for name in ("scripted", "offline"):
        assert cost_usd(usage(MILLION, MILLION), price_of(name)) == 0


@pytest.mark.parametrize("wrong", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none_is_refused(wrong: float) -> None:
    """NaN would make every budget look untouched."""
    with pytest.raises(InvalidValue, match="price"):
        Price(wrong, 1)
    with pytest.raises(InvalidValue, match="cache_read"):
        Price(1, 1, cache_read=wrong)
