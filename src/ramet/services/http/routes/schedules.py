"""The routes of the kernel's schedules. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.host.schedules.view import ScheduleView
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.operator.contract import AddSchedule, Paging, SchedulePage, TickList

OPERATIONS: Final = Operations()


@OPERATIONS.add(endpoints.LIST_SCHEDULES, "List the schedules")
async def _list(call: RequestContext) -> SchedulePage:
    return await call.kernel("schedule").schedules.page(call.query(Paging))


@OPERATIONS.add(
    endpoints.ADD_SCHEDULE,
    "Run an agent later or repeatedly, while a server of this folder is running",
    look_at="the schedules",
    status=201,
    refuses=(409,),
)
async def _add(call: RequestContext) -> ScheduleView:
    schedules = call.kernel("schedule").schedules
    return await schedules.add(await call.json(AddSchedule))


@OPERATIONS.add(endpoints.GET_SCHEDULE, "Return the state of a schedule")
async def _get(call: RequestContext) -> ScheduleView:
    return await call.kernel("schedule").scheduler.get(call.path("schedule"))


@OPERATIONS.add(endpoints.REMOVE_SCHEDULE, "Remove a schedule; an active run continues", status=204)
async def _remove(call: RequestContext) -> None:
    await call.kernel("schedule").scheduler.cancel(call.path("schedule"))


@OPERATIONS.add(endpoints.PAUSE_SCHEDULE, "Start no runs of a schedule until it is resumed", repetition="again")
async def _pause(call: RequestContext) -> ScheduleView:
    return await call.kernel("schedule").scheduler.pause(call.path("schedule"))


@OPERATIONS.add(endpoints.RESUME_SCHEDULE, "Resume a schedule at its next time", repetition="again")
async def _resume(call: RequestContext) -> ScheduleView:
    return await call.kernel("schedule").scheduler.resume(call.path("schedule"))


@OPERATIONS.add(
    endpoints.TRIGGER_SCHEDULE, "Run a schedule now, in addition to its times", look_at="the results of the schedule"
)
async def _trigger(call: RequestContext) -> ScheduleView:
    return await call.kernel("schedule").scheduler.trigger(call.path("schedule"))


@OPERATIONS.add(endpoints.SCHEDULE_RESULTS, "List the last ticks of a schedule with their states")
async def _results(call: RequestContext) -> TickList:
    return TickList(results=await call.kernel("schedule").scheduler.results(call.path("schedule")))
