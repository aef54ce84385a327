"""Remedies for objects that cannot be encoded, by their type."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

_VALUES = "return JSON types, bytes, dates, dataclasses, pydantic models or numpy arrays"


def remedy(value: Any) -> str:
    """Return a remedy for a value that is not data."""
    if isinstance(value, types.CoroutineType):
        return "await it and return what it gives"
    if isinstance(value, Iterator):
        return "return list(...) of it"
    if isinstance(value, Mapping):
        return "return dict(...) of it"
    if isinstance(value, BaseException):
        return "raise it, or return str(...) of it"
    if isinstance(value, type | types.FunctionType | types.MethodType | types.ModuleType | types.BuiltinFunctionType):
        return "return its name, or what it computes"
    if callable(getattr(value, "fileno", None)):
        return "return what was read from it, or the name of a file in the working directory"
    top = type(value).__module__.partition(".")[0]
    if top in ("pandas", "polars"):
        return "return .to_dict() of it, or a numpy array"
    if top == "numpy":
        return "return numpy.asarray(...) of it"
    if top == "torch":
        return "return .numpy() of it"
    return f"{_VALUES}, such as vars(...) of it" if hasattr(value, "__dict__") else _VALUES
