"""`ramet schedule`: what runs later, or again. Written down here; done by whoever has a scheduler at work."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Sequence

import msgspec
from rich.text import Text

from ramet.cli.clean import one_line
from ramet.cli.consoles import console
from ramet.cli.looking import print_table
from ramet.cli.problems import set_up_logging
from ramet.cli.working import arguments, function_of
from ramet.core.errors import InvalidValue, RametError
from ramet.core.schedule import Cron, FunctionTarget, Interval, NamedTarget
from ramet.host.records import journal_in, records_of
from ramet.host.references import reference_of
from ramet.host.schedules_books import Books
from ramet.host.schedules_desk import Desk
from ramet.host.schedules_view import ScheduleView, view_now


def schedule(options: Namespace) -> int:
    """Do what the verb says. Only `add` makes a journal where there is none."""
    if options.verb != "add":
        journal_in(options.dir)
    set_up_logging()
    views = asyncio.run(_list(options) if options.verb == "list" else _change(options))
    if options.json:
        for view in views:
            print(msgspec.json.encode(view).decode())
        return 0
    if options.verb == "list":
        heads = ("ID", "NEXT", "WHEN", "WHAT", "STATE", "LAST")
        print_table(heads, [_line(view) for view in views])
    for view in views if options.verb != "list" else ():
        console(sys.stdout).print(Text(f"{view.id}: {_state(view)}, next {_next(view)}"), soft_wrap=True)
    if options.verb == "rm":
        console(sys.stdout).print(Text(f"{options.id} is forgotten"), soft_wrap=True)
    return 0


async def _list(options: Namespace) -> Sequence[ScheduleView]:
    """All of them, beside whatever kernel runs."""
    async with await records_of(options.dir) as records:
        return [await view_now(found.book, records) for found in await Books(records.store).all()]


async def _change(options: Namespace) -> Sequence[ScheduleView]:
    async with Desk(working_dir=options.dir) as desk:
        match options.verb:
            case "add":
                return [await _add(desk, options)]
            case "pause":
                return [await desk.pause(options.id)]
            case "resume":
                return [await desk.resume(options.id)]
            case "trigger":
                return [await desk.trigger(options.id)]
            case _:
                await desk.cancel(options.id)
                return []


async def _add(desk: Desk, options: Namespace) -> ScheduleView:
    if (options.cron is None) != (options.tz is None):
        raise InvalidValue("--tz", options.tz, "a zone beside --cron, whose clocks it means, and only there")
    agent = reference_of(function_of(options.function, options.dir))  # What it is found by again: a script by its path.
    args = list(arguments(options.args))
    if options.every is not None:
        return await desk.schedule_agent_interval(options.every, agent, args=args, name=options.name)
    if options.after is not None:
        return await desk.schedule_agent_in(options.after, agent, args=args, name=options.name)
    if options.at is not None:
        return await desk.schedule_agent_at(options.at, agent, args=args, name=options.name)
    if options.cron is not None:
        return await desk.schedule_agent_cron(options.cron, agent, tz=options.tz, args=args, name=options.name)
    raise RametError("nothing says when")


def _line(view: ScheduleView) -> tuple[str, ...]:
    last = f"{view.last.status} {view.last.tick:%Y-%m-%d %H:%M:%S}" if view.last is not None else "-"
    return (view.id, _next(view), _when(view), _what(view), _state(view), last)


def _next(view: ScheduleView) -> str:
    return f"{view.next:%Y-%m-%d %H:%M:%S} UTC" if view.next is not None else "-"


def _when(view: ScheduleView) -> str:
    match view.schedule.timing:
        case Interval(seconds=seconds):
            return f"every {seconds:g}s"
        case Cron(line=line, tz=tz):
            return one_line(f"{line} {tz}", 80)
        case _:
            return "once"


def _what(view: ScheduleView) -> str:
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
