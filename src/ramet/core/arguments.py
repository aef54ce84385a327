"""Arguments of a wrong type, refused where they are given: a refusal names field, value, and what is accepted."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ramet.core.errors import InvalidValue, MissingValue


def check_instance(field: str, value: object, kind: type | tuple[type, ...], accepted: str) -> None:
    """Raise InvalidValue for a value that is not of this kind."""
    if not isinstance(value, kind):
        raise InvalidValue(field, value, accepted)


def check_text(field: str, value: object) -> None:
    """Raise InvalidValue for what is no text."""
    check_instance(field, value, str, "text")


def check_yes_or_no(field: str, value: object) -> None:
    """Raise InvalidValue for what is neither True nor False."""
    check_instance(field, value, bool, "True or False")


def check_callable(field: str, value: object) -> None:
    """Raise InvalidValue for what cannot be called; None is no function, and fine."""
    if value is not None and not callable(value):
        raise InvalidValue(field, value, "a function, or None")


class KnownFields(type):
    """Type of classes whose fields are given by name: an unknown or missing one is InvalidValue, which lists fields.

    Python's own TypeError names no field that would have been accepted. Values are not shown: they may be secrets.
    """

    if not TYPE_CHECKING:  # A type checker knows the constructor better than this signature.

        def __call__(cls, *args: Any, **fields: Any) -> Any:
            known, required = _fields_of(cls)
            if args:
                raise InvalidValue(_kind_of(cls), _NotShown(args[0]), "its fields by name")
            for name in fields:
                if name not in known:
                    raise unknown_field(f"{_kind_of(cls)}.{name}", name, known)
            for name, kind in required.items():
                if name not in fields:
                    raise MissingValue(f"{_kind_of(cls)}.{name}", kind)
            return super().__call__(**fields)


def unknown_field(field: str, name: str, known: tuple[str, ...]) -> InvalidValue:
    """Return the refusal of a field that there is not."""
    return InvalidValue(field, name, f"one of the fields {', '.join(known)}" if known else "no field at all")


class _NotShown:
    """Stands for a value that may hold secrets."""

    def __init__(self, value: object) -> None:
        self._kind = type(value).__name__

    def __repr__(self) -> str:
        return f"({self._kind}, not shown)"


@lru_cache(maxsize=64)
def _fields_of(cls: Any) -> tuple[tuple[str, ...], dict[str, str]]:
    """The fields of a dataclass or structure, and of those without a default the types."""
    if (structure := getattr(cls, "__struct_fields__", None)) is not None:
        return structure, {}
    import dataclasses

    fields = [each for each in dataclasses.fields(cls) if each.init]
    nothing = dataclasses.MISSING
    required = {
        each.name: str(each.type) for each in fields if each.default is nothing and each.default_factory is nothing
    }
    return tuple(each.name for each in fields), required


def _kind_of(cls: type) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).lower()
