"""Checks of argument types.

A refusal names the field, the value, and the accepted type.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ramet.core.errors import InvalidValue, MissingValue


def check_instance(field: str, value: object, kind: type | tuple[type, ...], accepted: str) -> None:
    """Raise InvalidValue if `value` is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise InvalidValue(field, value, accepted)


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can hold a text: it has no half of a pair of surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(field: str, value: object) -> None:
    """Raise InvalidValue if `value` is not a text."""
    check_instance(field, value, str, "text")


def check_bool(field: str, value: object) -> None:
    """Raise InvalidValue if `value` is neither True nor False."""
    if value is True or value is False:  # of every agent, several times a spawn
        return
    check_instance(field, value, bool, "True or False")


def check_callable(field: str, value: object) -> None:
    """Raise InvalidValue if `value` is neither callable nor None."""
    if value is not None and not callable(value):
        raise InvalidValue(field, value, "a function, or None")


class KnownFields(type):
    """A metaclass for classes whose fields are given by name.

    An unknown or missing field raises InvalidValue, which lists the fields. Python's own TypeError names no field that
    would have been accepted. Values are not shown: they may be secrets.
    """

    if not TYPE_CHECKING:  # A type checker knows the constructor better than this signature.

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            known, required = _fields_of(cls)
            if args:
                example = f", as in {cls.__name__}({known[0]}=…)" if known else ""
                raise InvalidValue(_kind_of(cls), _NotShown(args[0]), f"its fields by name{example}")
            for name in fields:
                if name not in known:
                    raise unknown_field(f"{_kind_of(cls)}.{name}", name, known)
            for name, kind in required.items():
                if name not in fields:
                    raise MissingValue(f"{_kind_of(cls)}.{name}", kind)
            return super().__call__(**fields)


def unknown_field(field: str, name: str, known_names: tuple[str, ...]) -> InvalidValue:
    """Return the error for a field that does not exist."""
    return InvalidValue(
        field, name, f"one of the fields {', '.join(known_names)}" if known_names else "no field at all"
    )


class _NotShown:
    """A placeholder for a value that may hold secrets."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"({self._kind}, not shown)"


@lru_cache(maxsize=64)
def _fields_of(cls: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the fields of a dataclass or structure, and the types of the fields without a default."""
    if (structure := getattr(cls, "__struct_fields__", None)) is not None:
        return structure, {}
    import dataclasses

    fields = [each for each in dataclasses.fields(cls) if each.init]
    missing = dataclasses.MISSING
    required_names = {
        each.name: str(each.type) for each in fields if each.default is missing and each.default_factory is missing
    }
    return tuple(each.name for each in fields), required_names


def _kind_of(cls: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
