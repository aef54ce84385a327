"""The routes of the kernel's schedules. For the operator."""

from __future__ import annotations

from typing import Final

from ramet.host.scheduler.view import ScheduleView
from ramet.services.http.operation import Operation
from ramet.services.http.request import RequestContext
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
        id="list_schedules",
        method="GET",
        path="/v1/schedules",
        summary="List the schedules",
        handle=_list,
        query=Paging,
        answers=SchedulePage,
    ),
    Operation(
        id="add_schedule",
        look_at="the schedules",
        method="POST",
        path="/v1/schedules",
        summary="Run an agent later or repeatedly, while a server of this folder is running",
        handle=_add,
        takes=AddSchedule,
        answers=ScheduleView,
        status=201,
        refuses=(409,),
    ),
    Operation(
        id="get_schedule",
        method="GET",
        path="/v1/schedules/{schedule}",
        summary="Return the state of a schedule",
        handle=_get,
        answers=ScheduleView,
    ),
    Operation(
        id="remove_schedule",
        method="DELETE",
        path="/v1/schedules/{schedule}",
        summary="Remove a schedule; an active run continues",
        handle=_remove,
        status=204,
    ),
    Operation(
        id="pause_schedule",
        repetition="again",
        method="POST",
        path="/v1/schedules/{schedule}/pause",
        summary="Start no runs of a schedule until it is resumed",
        handle=_pause,
        answers=ScheduleView,
    ),
    Operation(
        id="resume_schedule",
        repetition="again",
        method="POST",
        path="/v1/schedules/{schedule}/resume",
        summary="Resume a schedule at its next time",
        handle=_resume,
        answers=ScheduleView,
    ),
    Operation(
        id="trigger_schedule",
        look_at="the results of the schedule",
        method="POST",
        path="/v1/schedules/{schedule}/trigger",
        summary="Run a schedule now, in addition to its times",
        handle=_trigger,
        answers=ScheduleView,
    ),
    Operation(
        id="schedule_results",
        method="GET",
        path="/v1/schedules/{schedule}/results",
        summary="List the last ticks of a schedule with their states",
        handle=_results,
        answers=TickList,
    ),
)
