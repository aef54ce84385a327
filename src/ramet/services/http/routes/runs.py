"""The routes of the kernel's runs, and of the questions that wait in them. For the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from ramet.host.control.run_queries import RunRow
from ramet.services.http import endpoints
from ramet.services.http.endpoints import BYTES
from ramet.services.http.event_stream import encode_events
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operation
from ramet.services.http.schemas import Mail
from ramet.services.http.sse import EventStream
from ramet.services.operator.contract import (
    MOST,
    AnswerApproval,
    ApprovalPage,
    EventOptions,
    KeepTree,
    KeptTree,
    Paging,
    RunFilter,
    RunPage,
    Sent,
    Stopped,
    StopRun,
    WhichFile,
)
from ramet.services.operator.service import KernelViews, paginate


def _kernel(call: RequestContext) -> KernelViews:
    return call.parts.kernel.open(call.key, "run", call.request.path_params.get("run", ""))


async def _list(call: RequestContext) -> RunPage:
    return await _kernel(call).runs.runs(call.query(RunFilter))


async def _get(call: RequestContext) -> RunRow:
    return await _kernel(call).runs.run(call.path("run"))


async def _tree(call: RequestContext) -> RunPage:
    return await _kernel(call).runs.tree(call.path("run"), call.query(Paging))


async def _events(call: RequestContext) -> EventStream:
    runs, options, run = _kernel(call).runs, call.query(EventOptions), call.path("run")
    options.after = call.after(options.after)
    await runs.tree_of(run)  # Report errors before the stream begins.
    return call.parts.streams.stream(encode_events(runs.events(run, options)))


async def _send(call: RequestContext) -> Sent:
    kernel, mail = _kernel(call), await call.json(Mail)
    return await kernel.send(call.path("run"), mail.text, mail.dedupe_s)


async def _stop(call: RequestContext) -> Stopped:
    return await _kernel(call).stop(call.path("run"), (await call.json(StopRun)).reason)


async def _file(call: RequestContext) -> Response:
    content = await _kernel(call).read_file(call.path("run"), call.query(WhichFile).path)
    return Response(content, media_type=BYTES, headers={"x-content-type-options": "nosniff"})


async def _keep(call: RequestContext) -> KeptTree:
    return await _kernel(call).keep(call.path("run"), (await call.json(KeepTree)).on)


async def _approvals(call: RequestContext) -> ApprovalPage:
    return await call.parts.kernel.open(call.key, "approval").approvals(call.query(Paging))


async def _answer(call: RequestContext) -> None:
    approval = call.path("approval")
    kernel = call.parts.kernel.open(call.key, "approval", approval)
    answer = await call.json(AnswerApproval)
    await kernel.answer(approval, answer.allowed, answer.reason)


def _merge(call: RequestContext, pages: Sequence[ApprovalPage]) -> ApprovalPage:
    query = call.query(Paging)
    approvals = {each.id: each for page in pages for each in page.approvals}
    return paginate(sorted(approvals.values(), key=lambda each: each.asked_at), query)


OPERATIONS: Final = (
    Operation(
        endpoint=endpoints.LIST_RUNS,
        summary="List the runs of the server's kernel: the active runs, or all recorded runs",
        handle=_list,
    ),
    Operation(
        endpoint=endpoints.GET_RUN,
        of="run",
        summary="One run, with its result",
        handle=_get,
    ),
    Operation(
        endpoint=endpoints.RUN_TREE,
        of="run",
        summary="List all runs of the tree of a run",
        handle=_tree,
    ),
    Operation(
        endpoint=endpoints.RUN_EVENTS,
        of="run",
        summary="Return the recorded events of a run or its tree after a cursor, and with follow also new events",
        handle=_events,
        stream=True,
        resumes=True,
    ),
    Operation(
        endpoint=endpoints.SEND_RUN,
        look_at="the events of the run",
        of="run",
        summary="A message that a run reads at its next step",
        handle=_send,
        refuses=(409,),
    ),
    Operation(
        endpoint=endpoints.STOP_RUN,
        repetition="again",
        of="run",
        summary="End a run and all runs below it, and wait for their end",
        handle=_stop,
        refuses=(410,),
    ),
    Operation(
        endpoint=endpoints.RUN_FILE,
        of="run",
        summary="Read a file of an active run, by its path in the run's workspace",
        handle=_file,
        refuses=(410, 413),
    ),
    Operation(
        endpoint=endpoints.KEEP_RUN,
        repetition="again",
        of="run",
        summary="Retain the tree of a run permanently, or no longer",
        handle=_keep,
    ),
    Operation(
        endpoint=endpoints.LIST_APPROVALS,
        of="everyone",
        merge=_merge,
        unpaged_query=b"limit=%d" % MOST,
        summary="The questions of all agents that wait for a person",
        handle=_approvals,
    ),
    Operation(
        endpoint=endpoints.ANSWER_APPROVAL,
        repetition="again",
        of="whoever",
        summary="Answer a question, once",
        handle=_answer,
        status=204,
    ),
)
