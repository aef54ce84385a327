"""Tests of the plain data that a schedule stores."""

from __future__ import annotations

from typing import Any

import pytest

from ramet.core.errors import InvalidValue
from ramet.host.schedules.target import plain


def nested(levels: int, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Return lists or dicts inside each other."""
    value: Any = "x"
    for _ in range(levels):
        value = [value] if kind is list else {"key": value}
    return value


@pytest.mark.parametrize("kind", [list, dict])
def test_data_is_at_most_50_levels_deep(kind: type[list[Any]] | type[dict[str, Any]]) -> None:
    """The error names the part that is too deep."""
    assert plain("args", nested(50, kind)) == nested(50, kind)

    with pytest.raises(InvalidValue) as refusal:
        plain("args", nested(51, kind))
    part = "[0]" if kind is list else "['key']"
    assert refusal.value.field == f"args{part * 50}"
