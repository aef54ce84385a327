"""Resources that several sandboxes may use together, in addition to the limits of each sandbox."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name

MINIMUM, MAXIMUM = 0.01, 2.0**24  #: of each amount


class Reservation(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bound on the resources that all sandboxes with this reservation name use together; None is no bound."""

    name: str
    cpu_cores: float | None = None
    memory_mb: float | None = None  #: MiB
    #: The number of sandboxes that the reservation is meant for. Not a bound: a backend whose sandboxes have extra
    #: costs makes room for this number.
    sandboxes: int | None = None

    def __post_init__(self) -> None:
        checked_name("policy.reservation.name", self.name)
        for field in ("cpu_cores", "memory_mb"):
            value = getattr(self, field)
            if value is not None and (isinstance(value, bool) or not MINIMUM <= value <= MAXIMUM):
                raise InvalidValue(f"policy.reservation.{field}", value, f"a number from {MINIMUM} to {MAXIMUM:.0f}")
        sandboxes = self.sandboxes
        if sandboxes is not None and (isinstance(sandboxes, bool) or not 1 <= sandboxes <= MAXIMUM):
            raise InvalidValue("policy.reservation.sandboxes", sandboxes, f"a whole number from 1 to {MAXIMUM:.0f}")


def parse_reservation(field: str, value: object) -> Reservation:
    """Return a reservation, converting plain data.

    Raises InvalidValue, naming the field, if `value` is not a valid reservation.
    """
    if isinstance(value, Reservation):
        return value
    if not isinstance(value, Mapping):
        raise InvalidValue(field, value, "a Reservation")
    try:
        return msgspec.convert(dict(value), Reservation)
    except msgspec.ValidationError as problem:
        if isinstance(problem.__cause__, InvalidValue):
            raise problem.__cause__ from None
        raise InvalidValue(field, dict(value), str(problem)) from None
