"""The schedules of a working directory: recorded here, executed by any running scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ramet.cli.run import function_of
from ramet.cli.sources.contract import Change, NewSchedule
from ramet.core.errors import RametError
from ramet.host.control.run_queries import JournalReader
from ramet.host.control.schedules import ScheduleTable
from ramet.host.schedules.offline import OfflineScheduler
from ramet.host.schedules.request import Options
from ramet.host.schedules.view import ScheduleView, view_now
from ramet.host.serialize.references import reference_of


async def list_schedules(records: JournalReader) -> Sequence[ScheduleView]:
    """Return all schedules, concurrently with any running kernel."""
    return [await view_now(schedule, records) for schedule in await ScheduleTable(records.store).current_records()]


async def change_schedule(folder: Path, id: str, change: Change) -> ScheduleView | None:
    """Change a schedule. Raises Unknown if there is no such schedule."""
    async with OfflineScheduler(working_dir=folder) as scheduler:
        match change:
            case "pause":
                return await scheduler.pause(id)
            case "resume":
                return await scheduler.resume(id)
            case "trigger":
                return await scheduler.trigger(id)
            case "rm":
                await scheduler.cancel(id)
                return None


async def add_schedule(folder: Path, new: NewSchedule) -> ScheduleView:
    """Add a schedule; creates a missing journal. Raises InvalidValue if it is invalid."""
    agent = reference_of(function_of(new.function, folder))  # Its persistent reference: a script by its path.
    options = Options(args=list(new.args), name=new.name, repeatable=new.repeatable, in_process=new.in_process)
    async with OfflineScheduler(working_dir=folder) as scheduler:
        if new.every is not None:
            return await scheduler.schedule_agent_interval(new.every, agent, **options)
        if new.after is not None:
            return await scheduler.schedule_agent_in(new.after, agent, **options)
        if new.at is not None:
            return await scheduler.schedule_agent_at(new.at, agent, **options)
        if new.cron is not None and new.tz is not None:
            return await scheduler.schedule_agent_cron(new.cron, agent, tz=new.tz, **options)
    raise RametError("the schedule has no time; expected every, after, at, or cron with tz")
