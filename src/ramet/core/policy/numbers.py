"""Checks of numbers in policies."""

from __future__ import annotations

from msgspec import Struct

from ramet.core.errors import InvalidValue


class Integer(Struct, frozen=True):
    """A check for a whole number within bounds."""

    minimum: int
    maximum: int

    def __call__(self, field: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not self.minimum <= value <= self.maximum:
            raise InvalidValue(field, value, f"a whole number from {self.minimum} to {self.maximum}")
        return value


class Number(Struct, frozen=True):
    """A check for a number within bounds; NaN is never accepted."""

    minimum: float
    maximum: float

    def __call__(self, field: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not self.minimum <= value <= self.maximum:
            raise InvalidValue(field, value, f"a number from {self.minimum:g} to {self.maximum:g}")
        return float(value)
