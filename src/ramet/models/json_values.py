"""Plain data: values that JSON can hold and every parser reads alike. Other values are reported with their path.

Refused: bytes, sets, tuples, objects, keys that are not text, NaN and infinities, integers above 2^53 (JavaScript
rounds them), invalid Unicode (lone surrogates), and nesting deeper than 100.
"""

from __future__ import annotations

from math import isfinite
from typing import Any

from ramet.core.arguments import is_unicode
from ramet.core.errors import InvalidValue

MAX_INT = 2**53
MAX_DEPTH = 100


def to_json_value(value: Any, path: str, depth: int = 0) -> Any:
    """Return a copy of `value` made of exact JSON types only. Raises InvalidValue, with the path, for other values."""
    kind = type(value)
    if kind is str:
        if not value.isascii():
            _check_text(value, path)
        return value
    if value is None or kind is bool:
        return value
    if kind is int:
        if -MAX_INT <= value <= MAX_INT:
            return value
        raise InvalidValue(path, value, "an integer between -2^53 and 2^53")
    if kind is float:
        if isfinite(value):
            return value
        raise InvalidValue(path, value, "a finite number")
    if depth >= MAX_DEPTH:
        raise InvalidValue(path[:200], kind.__name__, f"at most {MAX_DEPTH} levels of nesting")
    if isinstance(value, dict):
        return {_key(key, path): to_json_value(item, f"{path}.{key}", depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return to_json_value(_exact(value, path), path, depth)


def plain_parts(values: dict[Any, Any], path: str, dropped_paths: list[str]) -> dict[str, Any]:
    """Return the plain entries of `values`; the paths of the others are added to `dropped_paths`."""
    plain: dict[str, Any] = {}
    for key, value in values.items():
        try:
            plain[_key(key, path)] = to_json_value(value, f"{path}.{key}", 1)
        except InvalidValue as error:
            dropped_paths.append(error.field)
    return plain


def clean_text(text: str) -> str:
    """Return `text` with invalid Unicode (lone surrogates, for example from cut emoji) replaced by U+FFFD."""
    if text.isascii() or is_unicode(text):
        return text
    # Matching surrogates are joined first: "\ud83d\ude00" is one character spelled as two.
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def sanitize(value: Any, depth: int = 0) -> Any:
    """Return `value` with `clean_text` applied to every text in it; objects except lists and dicts are unchanged."""
    if isinstance(value, str):
        return clean_text(value)
    if depth < MAX_DEPTH:
        if isinstance(value, dict):
            return {sanitize(key, depth + 1): sanitize(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list):
            return [sanitize(item, depth + 1) for item in value]
    return value


def _key(key: object, path: str) -> str:
    if type(key) is str:
        if not key.isascii():
            _check_text(key, path)
        return key
    if isinstance(key, str):
        return str.__str__(key)
    raise InvalidValue(f"key of {path}", key, "text")


def _check_text(text: str, path: str) -> None:
    if not is_unicode(text):
        raise InvalidValue(path, text[:100].encode("ascii", "backslashreplace").decode(), "Unicode text")


def _exact(value: Any, path: str) -> str | int | float:
    """Return the exact JSON value of a subclass of str, int or float (enums, TextAccessor, numpy floats)."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise InvalidValue(path, value, "plain data: text, numbers, true, false, null, lists, objects with text keys")
