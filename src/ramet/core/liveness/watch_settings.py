"""`Watch`: when a run counts as silent or as looping, and what happens then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias

from ramet.core.arguments import KnownFields
from ramet.core.errors import InvalidValue
from ramet.core.limits import MAX_EXACT

#: What happens besides the event: nothing, a notice to the run above, a pause, or the end of the run.
WatchAction: TypeAlias = Literal["report", "notify_parent", "pause", "end"]

#: The actions that can be configured.
ACTIONS: tuple[WatchAction, ...] = ("report", "notify_parent", "pause", "end")
MAX_SAME_CALL = 1_000


@dataclass(frozen=True, kw_only=True)
class Watch(metaclass=KnownFields):
    """The settings with which a run is watched for silence and for loops; None watches for neither.

    Runs below inherit them. A run with an own `silent_s` uses its own `on_silent` with it, and likewise `same_call` and
    `on_loop`.
    """

    silent_s: float | None = None  #: seconds without an event after which a run that waits for nothing known is silent
    same_call: int | None = None  #: number of equal tool calls with equal results, one after the other, that is a loop
    #: "report" an event, "notify_parent" by a notice, "pause" the run, or "end" it
    on_silent: WatchAction = "report"
    on_loop: WatchAction = "report"  #: likewise

    def __post_init__(self) -> None:
        seconds, count = self.silent_s, self.same_call
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (is_number and 0 < seconds <= MAX_EXACT):  # nor NaN
            raise InvalidValue("watch.silent_s", seconds, "a number of seconds above 0, or None")
        is_whole = isinstance(count, int) and not isinstance(count, bool)
        if count is not None and not (is_whole and 2 <= count <= MAX_SAME_CALL):
            raise InvalidValue("watch.same_call", count, f"a whole number from 2 to {MAX_SAME_CALL}, or None")
        for name in ("on_silent", "on_loop"):
            if getattr(self, name) not in ACTIONS:
                raise InvalidValue(f"watch.{name}", getattr(self, name), " or ".join(ACTIONS))

    @property
    def is_active(self) -> bool:
        """True if a run is watched for anything."""
        return self.silent_s is not None or self.same_call is not None

    def over(self, inherited: Watch) -> Watch:
        """Return these settings, with the inherited ones for what is not watched for here."""
        silence = self if self.silent_s is not None else inherited
        loop = self if self.same_call is not None else inherited
        if silence is loop:
            return silence
        return Watch(
            silent_s=silence.silent_s, on_silent=silence.on_silent, same_call=loop.same_call, on_loop=loop.on_loop
        )

    def as_data(self) -> dict[str, Any]:
        """Return the fields that are not their defaults, by name: `Watch(**data)` equals this object."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value != getattr(NO_WATCH, name)}


NO_WATCH = Watch()


def watch_from(data: Mapping[str, Any]) -> Watch:
    """Return settings from data. Raises InvalidValue that names the field."""
    known = tuple(each.name for each in fields(Watch))
    for name, value in data.items():
        if name not in known:
            raise InvalidValue(f"watch.{name}", value, f"one of {', '.join(known)}")
    return Watch(**data)
