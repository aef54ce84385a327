"""The routes of the kernel's runs, and of the questions that wait in them. For the operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.responses import Response

from ramet.core.ids import run_id
from ramet.host.control.run_queries import RunRow
from ramet.services.http import endpoints
from ramet.services.http.endpoints import BYTES
from ramet.services.http.request import RequestContext
from ramet.services.http.routes.operation import Operations
from ramet.services.http.schemas import Mail
from ramet.services.http.sse import EventStream, encode_events
from ramet.services.operator.changes import ChangeOptions
from ramet.services.operator.contract import (
    MOST,
    AnswerApproval,
    ApprovalPage,
    EventOptions,
    ForkedRun,
    ForkRun,
    KeepTree,
    KeptTree,
    Paging,
    PausedRuns,
    PauseRun,
    RaisedLimits,
    RaiseLimits,
    RunDiff,
    RunFilter,
    RunPage,
    Sent,
    Stopped,
    StopRun,
    WhichFile,
)
from ramet.services.operator.service import paginate

OPERATIONS: Final = Operations()
#: Headers of bytes that an agent, a model or a server wrote: no browser shows or runs these.
_NOT_SHOWN: Final = {"x-content-type-options": "nosniff", "content-disposition": "attachment"}


def _merge(call: RequestContext, pages: Sequence[ApprovalPage]) -> ApprovalPage:
    query = call.query(Paging)
    approvals = {each.id: each for page in pages for each in page.approvals}
    return paginate(sorted(approvals.values(), key=lambda each: each.asked_at), query)


@OPERATIONS.add(endpoints.LIST_RUNS, "List the runs of the server's kernel: the active runs, or all recorded runs")
async def _list(call: RequestContext) -> RunPage:
    return await call.kernel("run").runs.runs(call.query(RunFilter))


@OPERATIONS.add(
    endpoints.CHANGES,
    "Stream the rows of all runs, or of a run and all below it, and new rows whenever they change, without an end",
    stream=True,
    resumes=True,
)
async def _changes(call: RequestContext) -> EventStream:
    options = call.query(ChangeOptions)
    options.after = call.request.headers.get("last-event-id") or options.after
    messages = await call.kernel("run").changes(options)
    return call.parts.streams.stream(encode_events(messages, "changes"))


@OPERATIONS.add(endpoints.GET_RUN, "One run, with its result", of="run")
async def _get(call: RequestContext) -> RunRow:
    return await call.kernel("run").runs.run(call.path("run"))


@OPERATIONS.add(endpoints.RUN_TREE, "List all runs of the tree of a run", of="run")
async def _tree(call: RequestContext) -> RunPage:
    return await call.kernel("run").runs.tree(call.path("run"), call.query(Paging))


@OPERATIONS.add(
    endpoints.RUN_EVENTS,
    "Return the recorded events of a run or its tree after a cursor, and with follow also new events",
    of="run",
    stream=True,
    resumes=True,
)
async def _events(call: RequestContext) -> EventStream:
    runs, options, run = call.kernel("run").runs, call.query(EventOptions), call.path("run")
    options.after = call.after(options.after)
    await runs.tree_of(run)  # Report errors before the stream begins.
    return call.parts.streams.stream(encode_events(runs.events(run, options)))


@OPERATIONS.add(
    endpoints.SEND_RUN,
    "A message that a run reads at its next step",
    look_at="the events of the run",
    of="run",
    refuses=(409,),
)
async def _send(call: RequestContext) -> Sent:
    kernel, mail = call.kernel("run"), await call.json(Mail)
    return await kernel.send(call.path("run"), mail.text, mail.dedupe_s)


@OPERATIONS.add(
    endpoints.FORK_RUN,
    "Start a tree with the messages of a run, active or ended, up to an event of its tree",
    repetition="found",
    look_at="the list of runs",
    begins=True,
    of="run",
    status=201,
    refuses=(403, 409),
)
async def _fork(call: RequestContext) -> ForkedRun:
    kernel, request, attempt = call.kernel("run"), await call.json(ForkRun), call.attempt
    root = run_id(attempt.entropy(8)) if attempt is not None else ""
    return await kernel.fork(call.path("run"), request, root, may_exist=attempt is not None and attempt.is_repeated)


@OPERATIONS.add(
    endpoints.STOP_RUN,
    "End a run and all runs below it, and wait for their end",
    repetition="again",
    of="run",
    refuses=(410,),
)
async def _stop(call: RequestContext) -> Stopped:
    return await call.kernel("run").stop(call.path("run"), (await call.json(StopRun)).reason)


@OPERATIONS.add(
    endpoints.RAISE_LIMITS,
    "Add to the limits of a run: its requests that wait there go on",
    repetition="again",
    of="run",
    refuses=(409, 410),
)
async def _raise_limits(call: RequestContext) -> RaisedLimits:
    request = await call.json(RaiseLimits)
    if not request.key and call.attempt is not None:  # A repetition adds nothing either.
        request.key = f"request-{call.attempt.entropy(16).hex()}"
    return await call.kernel("run").raise_limits(call.path("run"), request)


@OPERATIONS.add(
    endpoints.PAUSE_RUN,
    "Pause a run and all runs below it: what is under way ends, nothing new begins",
    repetition="again",
    of="run",
    refuses=(410,),
)
async def _pause(call: RequestContext) -> PausedRuns:
    return await call.kernel("run").pause(call.path("run"), await call.json(PauseRun))


@OPERATIONS.add(
    endpoints.RESUME_RUN,
    "Let a paused run go on, and the runs below it that are not paused themselves",
    repetition="again",
    of="run",
    status=204,
    refuses=(410,),
)
async def _resume(call: RequestContext) -> None:
    await call.kernel("run").resume(call.path("run"))


@OPERATIONS.add(
    endpoints.RUN_FILE, "Read a file of an active run, by its path in the run's workspace", of="run", refuses=(410, 413)
)
async def _file(call: RequestContext) -> Response:
    content = await call.kernel("run").read_file(call.path("run"), call.query(WhichFile).path)
    return Response(content, media_type=BYTES, headers=_NOT_SHOWN)


@OPERATIONS.add(
    endpoints.RUN_DIFF,
    "Compare the worktree or clone of a run, or the branch that it left, with the commit that it began at",
    of="run",
    refuses=(410,),
)
async def _diff(call: RequestContext) -> RunDiff:
    return await call.kernel("run").diffs.get(call.path("run"))


@OPERATIONS.add(
    endpoints.RUN_BLOB,
    "Read bytes that the tree of a run has, by the hash that is their name in its messages",
    of="run",
    refuses=(422,),
)
async def _blob(call: RequestContext) -> Response:
    content = await call.kernel("run").runs.blob(call.path("run"), call.path("blob"))
    return Response(content, media_type=BYTES, headers=_NOT_SHOWN)


@OPERATIONS.add(endpoints.KEEP_RUN, "Retain the tree of a run permanently, or no longer", repetition="again", of="run")
async def _keep(call: RequestContext) -> KeptTree:
    return await call.kernel("run").keep(call.path("run"), (await call.json(KeepTree)).on)


@OPERATIONS.add(
    endpoints.LIST_APPROVALS,
    "The questions of all agents, and the runs at limits, that wait for a person",
    of="everyone",
    merge=_merge,
    unpaged_query=b"limit=%d" % MOST,
)
async def _approvals(call: RequestContext) -> ApprovalPage:
    return await call.kernel("approval").approvals(call.query(Paging))


@OPERATIONS.add(
    endpoints.ANSWER_APPROVAL,
    "Answer a question, or let a run at a limit go on, once",
    repetition="again",
    of="whoever",
    status=204,
    refuses=(409,),
)
async def _answer(call: RequestContext) -> None:
    approval = call.path("approval")
    kernel = call.kernel("approval")
    answer = await call.json(AnswerApproval)
    await kernel.answer(approval, answer.allowed, answer.reason, for_run=answer.for_run)
