"""The routes of the kernel's runs, and of the questions that wait in them. For the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from ramet.host.control.run_queries import RunRow
from ramet.services.http.event_stream import encode_events
from ramet.services.http.operation import BYTES, Operation
from ramet.services.http.request import RequestContext
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
        id="list_runs",
        method="GET",
        path="/v1/runs",
        summary="List the runs of the server's kernel: the active runs, or all recorded runs",
        handle=_list,
        query=RunFilter,
        answers=RunPage,
    ),
    Operation(
        id="get_run",
        of="run",
        method="GET",
        path="/v1/runs/{run}",
        summary="One run, with its result",
        handle=_get,
        answers=RunRow,
    ),
    Operation(
        id="run_tree",
        of="run",
        method="GET",
        path="/v1/runs/{run}/tree",
        summary="List all runs of the tree of a run",
        handle=_tree,
        query=Paging,
        answers=RunPage,
    ),
    Operation(
        id="run_events",
        of="run",
        method="GET",
        path="/v1/runs/{run}/events",
        summary="Return the recorded events of a run or its tree after a cursor, and with follow also new events",
        handle=_events,
        query=EventOptions,
        stream=True,
        resumes=True,
    ),
    Operation(
        id="send_run",
        look_at="the events of the run",
        of="run",
        method="POST",
        path="/v1/runs/{run}/mail",
        summary="A message that a run reads at its next step",
        handle=_send,
        takes=Mail,
        answers=Sent,
        refuses=(409,),
    ),
    Operation(
        id="stop_run",
        repetition="again",
        of="run",
        method="POST",
        path="/v1/runs/{run}/stop",
        summary="End a run and all runs below it, and wait for their end",
        handle=_stop,
        takes=StopRun,
        answers=Stopped,
        refuses=(410,),
    ),
    Operation(
        id="run_file",
        of="run",
        method="GET",
        path="/v1/runs/{run}/file",
        summary="Read a file of an active run, by its path in the run's workspace",
        handle=_file,
        query=WhichFile,
        refuses=(410, 413),
    ),
    Operation(
        id="keep_run",
        repetition="again",
        of="run",
        method="POST",
        path="/v1/runs/{run}/keep",
        summary="Retain the tree of a run permanently, or no longer",
        handle=_keep,
        takes=KeepTree,
        answers=KeptTree,
    ),
    Operation(
        id="list_approvals",
        of="everyone",
        merge=_merge,
        unpaged_query=b"limit=%d" % MOST,
        method="GET",
        path="/v1/approvals",
        summary="The questions of all agents that wait for a person",
        handle=_approvals,
        query=Paging,
        answers=ApprovalPage,
    ),
    Operation(
        id="answer_approval",
        repetition="again",
        of="whoever",
        method="POST",
        path="/v1/approvals/{approval}",
        summary="Answer a question, once",
        handle=_answer,
        takes=AnswerApproval,
        status=204,
    ),
)
