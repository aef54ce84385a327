"""`ramet schedule`: manage agents that run later or repeatedly."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence

import msgspec
from rich.text import Text

from ramet.cli.errors import set_up_logging
from ramet.cli.operate.ps import print_table
from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.run import arguments
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.contract import NewSchedule
from ramet.core.errors import InvalidValue
from ramet.core.schedules.schedule import Cron, FunctionTarget, Interval, NamedTarget
from ramet.host.schedules.view import ScheduleView


async def schedule(options: Namespace) -> int:
    """Run the verb."""
    set_up_logging()
    views = await _views(options)
    if options.json:
        for view in views:
            print_json(msgspec.json.encode(view))
        return 0
    if options.verb == "list":
        heads = ("ID", "NEXT", "WHEN", "WHAT", "STATE", "LAST")
        print_table(heads, [_line(view) for view in views])
        if not views:
            print_note("no schedule here")
    for view in views if options.verb != "list" else ():
        console(sys.stdout).print(Text(f"{view.id}: {_state(view)}, next {_next_time(view)}"), soft_wrap=True)
    if options.verb == "rm":
        console(sys.stdout).print(Text(f"{options.id} is removed"), soft_wrap=True)
    return 0


async def _views(options: Namespace) -> Sequence[ScheduleView]:
    async with source_of(options) as source:
        match options.verb:
            case "list":
                return await source.schedules()
            case "add":
                return [await source.add_schedule(_new_schedule(options))]
            case _:
                view = await source.change_schedule(options.id, options.verb)
                return [] if view is None else [view]


def _new_schedule(options: Namespace) -> NewSchedule:
    if (options.cron is None) != (options.tz is None):
        raise InvalidValue("--tz", options.tz, "a time zone together with --cron, and only with --cron")
    return NewSchedule(
        function=options.function,
        args=arguments(options.args),
        every=options.every,
        after=options.after,
        at=options.at,
        cron=options.cron,
        tz=options.tz,
        name=options.name,
        repeatable=options.repeatable,
        in_process=options.in_process,
    )


def _line(view: ScheduleView) -> tuple[str, ...]:
    last = f"{view.last.status} {view.last.tick:%Y-%m-%d %H:%M:%S}" if view.last is not None else "-"
    return (view.id, _next_time(view), _timing(view), _target(view), _state(view), last)


def _next_time(view: ScheduleView) -> str:
    return f"{view.next:%Y-%m-%d %H:%M:%S} UTC" if view.next is not None else "-"


def _timing(view: ScheduleView) -> str:
    match view.schedule.timing:
        case Interval(seconds=seconds):
            return f"every {seconds:g}s"
        case Cron(line=line, tz=tz):
            return one_line(f"{line} {tz}", 80)
        case _:
            return "once"


def _target(view: ScheduleView) -> str:
    match view.schedule.target:
        case FunctionTarget(reference=reference):
            return one_line(reference, 120)
        case NamedTarget(name=name):
            return one_line(name, 120)
        case _:
            return one_line(view.name, 120)


def _state(view: ScheduleView) -> str:
    if view.running:
        return "running"
    if view.paused:
        return "paused"
    return "waits" if view.next is not None or view.waiting else "over"
