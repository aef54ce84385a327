"""The conversion of a request to a `Schedule`: every argument is checked here, before anything is stored."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict

import msgspec

from ramet.core.errors import InvalidValue
from ramet.core.ids import checked_name, safe_name
from ramet.core.limits import NO_LIMITS, Limits
from ramet.core.policy.policy import Policy
from ramet.core.schedules.schedule import (
    AgentTarget,
    Cron,
    FunctionTarget,
    Interval,
    Misfire,
    Once,
    Overlap,
    Schedule,
)
from ramet.host.schedules.target import Target, checked_policy, checked_size

MAX_PROMPT = 100_000


class Options(TypedDict, total=False):
    """The options of every kind of schedule."""

    name: str | None  #: the schedule's id from then on; without a name the schedule gets an id of its own
    args: Sequence[Any]  #: of a function; plain JSON data, like kwargs
    kwargs: Mapping[str, Any]
    prompt: str  #: of a model agent
    policy: Policy | None  #: of the sandbox of its runs; None is the default policy
    limits: Limits  #: of each run
    misfire: Misfire  #: skip | once | all
    misfire_max: int  #: the limit of ticks for `all`
    overlap: Overlap  #: skip | queue | allow
    jitter_seconds: float
    until: datetime | None
    repeatable: bool  #: a function may be called again if a dead process had called it
    in_process: bool  #: its runs are in this process, with all rights of the process, not in a sandbox


def schedule_of(
    timing: Interval | Once | Cron,
    requested_timing: object,
    target: Target,
    entropy: bytes,
    *,
    name: str | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    prompt: str = "",
    policy: Policy | None = None,
    limits: Limits = NO_LIMITS,
    misfire: Misfire = "once",
    misfire_max: int = 10,
    overlap: Overlap = "skip",
    jitter_seconds: float = 0.0,
    until: datetime | None = None,
    repeatable: bool = False,
    in_process: bool = False,
) -> Schedule:
    """Return the schedule of these options; `requested_timing` is the timing of the caller's request.

    Raises InvalidValue by field.
    """
    if isinstance(args, str | bytes) or not isinstance(args, Sequence):
        raise InvalidValue("args", args, "a list of plain JSON data")
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise InvalidValue("kwargs", kwargs, "a mapping of names to plain JSON data")
    if not isinstance(limits, Limits):
        raise InvalidValue("limits", limits, "ramet.Limits")
    if not isinstance(prompt, str) or len(prompt) > MAX_PROMPT:
        raise InvalidValue("prompt", prompt, f"text of at most {MAX_PROMPT} characters")
    checked_size("prompt", prompt)
    label = _label(target)
    schedule = Schedule(
        id="",
        name=checked_name("name", name) if name is not None else label,
        timing=timing,
        target=target,
        args=tuple(checked_size("args", list(args))),
        kwargs=checked_size("kwargs", dict(kwargs or {})),
        prompt=prompt,
        policy=checked_policy(policy),
        limits=limits,
        misfire=misfire,
        misfire_max=misfire_max,
        overlap=overlap,
        jitter_s=jitter_seconds,
        until=until,
        repeatable=repeatable,
        in_process=in_process,
    )
    if _is_function(target):
        if prompt:
            raise InvalidValue("prompt", prompt, "none: a function takes args and kwargs")
    elif schedule.args or schedule.kwargs:
        raise InvalidValue("args", (schedule.args, schedule.kwargs), "none: a model agent takes a prompt")
    elif not prompt:
        raise InvalidValue("prompt", prompt, "the task of the agent")
    digest = _digest(requested_timing, schedule)
    # Without a name, the id of an interval or cron line depends on its content: a restarted program that asks again
    # gets the existing schedule.
    suffix = digest[:8] if not isinstance(timing, Once) else entropy.hex()
    return msgspec.structs.replace(schedule, id=name if name is not None else f"{label}-{suffix}", asked=digest)


def _digest(requested_timing: object, schedule: Schedule) -> str:
    fields = msgspec.to_builtins(schedule)
    del fields["timing"]
    return hashlib.sha256(msgspec.json.encode((requested_timing, fields), order="deterministic")).hexdigest()[:32]


def _is_function(target: Target) -> bool:
    return isinstance(target, FunctionTarget) or (isinstance(target, AgentTarget) and "function" in target.fields)


def _label(target: Target) -> str:
    if isinstance(target, FunctionTarget):
        return safe_name(target.reference.rpartition(":")[2].rpartition(".")[2], "function")
    return safe_name(target.fields["name"] if isinstance(target, AgentTarget) else target.name)
