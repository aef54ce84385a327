"""Prices of models: looked up once, and possibly unknown."""

from __future__ import annotations

import gc
import weakref

import pytest

from ramet.core.errors import Unknown
from ramet.host.charging import Provider
from ramet.models.prices import Price

OWN = Price(input=1.0, output=2.0)


class HeldObject:
    """An object that the frame of a turn holds."""


def test_a_price_is_looked_up_by_the_models_name() -> None:
    assert Provider("own", 1, lambda: None, {"own": OWN}).price() == OWN
    assert Provider("own", 1, lambda: None, {"own": OWN}).known_price() == OWN


def test_an_unknown_price_keeps_no_caller_alive() -> None:
    """A server asks at each turn: a kept exception would keep every turn in its traceback."""
    provider = Provider("a model of nobody", 1, lambda: None, {})

    def ask() -> weakref.ref[HeldObject]:
        object_held = HeldObject()
        with pytest.raises(Unknown, match="a model of nobody"):
            provider.price()
        assert provider.known_price() is None
        return weakref.ref(object_held)

    releases = [ask() for _ in range(3)]
    gc.collect()

    assert [each() for each in releases] == [None] * 3
