"""The settings of a watch: checked, inherited, and read from data."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ramet import Watch
from ramet.core.errors import InvalidValue
from ramet.core.liveness.watch_settings import NO_WATCH, watch_from


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("silent_s", value) for value in (0, -1, math.nan, math.inf, True, "60", 2**54)),
        *(("same_call", value) for value in (1, 0, -3, 2.0, True, "3", 1_001)),
        *((field, value) for field in ("on_silent", "on_loop") for value in ("stop", "", None, 1)),
    ],
)
def test_an_invalid_setting_is_refused_by_its_name(field: str, value: Any) -> None:
    """The refusal names the field and the value, also for data that another process wrote."""
    with pytest.raises(InvalidValue) as refusal:
        Watch(**{field: value})
    assert (refusal.value.field, refusal.value.value) == (f"watch.{field}", value)
    with pytest.raises(InvalidValue, match=f"watch.{field}"):
        watch_from({field: value})


def test_an_unknown_setting_is_refused() -> None:
    """The refusal lists the settings."""
    with pytest.raises(InvalidValue, match="silent_s, same_call, on_silent, on_loop"):
        watch_from({"loud_s": 1})


def test_what_is_not_set_is_inherited_with_its_action() -> None:
    """An own number brings its own action; the other number keeps the inherited one."""
    above = Watch(silent_s=60, on_silent="end", same_call=3, on_loop="notify_parent")

    assert NO_WATCH.over(above) is above
    assert above.over(Watch(silent_s=1, same_call=9)) is above
    assert Watch(silent_s=5).over(above) == Watch(silent_s=5, same_call=3, on_loop="notify_parent")
    assert Watch(same_call=2).over(above) == Watch(silent_s=60, on_silent="end", same_call=2)
    assert Watch(on_silent="end").over(NO_WATCH) == NO_WATCH


@pytest.mark.parametrize(
    "watch", [NO_WATCH, Watch(silent_s=0.5), Watch(same_call=2, on_loop="end"), Watch(silent_s=9, on_silent="end")]
)
def test_settings_are_read_back_from_their_data(watch: Watch) -> None:
    """Only what differs from the defaults is written."""
    assert watch_from(watch.as_data()) == watch
    assert len(NO_WATCH.as_data()) == 0
