"""The routes of the kernel's schedules. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.host.scheduler.view import ScheduleView
from ramet.services.http import endpoints
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operation
from ramet.services.operator.contract import AddSchedule, Paging, SchedulePage, TickList
from ramet.services.operator.schedules import ScheduleViews


def _schedules(call: RequestContext) -> ScheduleViews:
    return call.parts.kernel.open(call.key, "schedule", call.request.path_params.get("schedule", "")).schedules


async def _list(call: RequestContext) -> SchedulePage:
    return await _schedules(call).page(call.query(Paging))


async def _add(call: RequestContext) -> ScheduleView:
    schedules = _schedules(call)
    return await schedules.add(await call.json(AddSchedule))


async def _get(call: RequestContext) -> ScheduleView:
    return await _schedules(call).get(call.path("schedule"))


async def _pause(call: RequestContext) -> ScheduleView:
    return await _schedules(call).pause(call.path("schedule"))


async def _resume(call: RequestContext) -> ScheduleView:
    return await _schedules(call).resume(call.path("schedule"))


async def _trigger(call: RequestContext) -> ScheduleView:
    return await _schedules(call).trigger(call.path("schedule"))


async def _remove(call: RequestContext) -> None:
    await _schedules(call).remove(call.path("schedule"))


async def _results(call: RequestContext) -> TickList:
    return TickList(results=await _schedules(call).results(call.path("schedule")))


OPERATIONS: Final = (
    Operation(
        endpoint=endpoints.LIST_SCHEDULES,
        summary="List the schedules",
        handle=_list,
    ),
    Operation(
        endpoint=endpoints.ADD_SCHEDULE,
        look_at="the schedules",
        summary="Run an agent later or repeatedly, while a server of this folder is running",
        handle=_add,
        status=201,
        refuses=(409,),
    ),
    Operation(
        endpoint=endpoints.GET_SCHEDULE,
        summary="Return the state of a schedule",
        handle=_get,
    ),
    Operation(
        endpoint=endpoints.REMOVE_SCHEDULE,
        summary="Remove a schedule; an active run continues",
        handle=_remove,
        status=204,
    ),
    Operation(
        endpoint=endpoints.PAUSE_SCHEDULE,
        repetition="again",
        summary="Start no runs of a schedule until it is resumed",
        handle=_pause,
    ),
    Operation(
        endpoint=endpoints.RESUME_SCHEDULE,
        repetition="again",
        summary="Resume a schedule at its next time",
        handle=_resume,
    ),
    Operation(
        endpoint=endpoints.TRIGGER_SCHEDULE,
        look_at="the results of the schedule",
        summary="Run a schedule now, in addition to its times",
        handle=_trigger,
    ),
    Operation(
        endpoint=endpoints.SCHEDULE_RESULTS,
        summary="List the last ticks of a schedule with their states",
        handle=_results,
    ),
)
