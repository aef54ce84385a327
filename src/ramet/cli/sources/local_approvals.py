"""The questions and paused runs of a working directory: from its journal, and from its kernel what only that knows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import convert

from ramet.cli.sources.contract import WAITING, Question
from ramet.core.errors import DamagedTree
from ramet.core.replay.paused_limits import describe_pause, recorded_pauses
from ramet.core.replay.replay import TreeReplay
from ramet.host.control.run_queries import INTERRUPTED, PATIENCE_S, JournalReader
from ramet.host.control.socket import ListPauses, NoKernel, Refused, send_request

_EARLY = datetime.min.replace(tzinfo=UTC)


class DatedQuestion(NamedTuple):
    """A question, or a paused run, with the time since when it waits."""

    at: datetime
    question: Question


async def list_questions(folder: Path, records: JournalReader) -> list[Question]:
    """Return what waits for a person, the oldest first; damaged trees are then in `records.damage_by_root`.

    The kernel says what an answer to a paused run adds; the journal says that for interrupted runs, and if the kernel
    does not answer.
    """
    dated = list[DatedQuestion]()
    roots = await records.trees()
    paused = await _pauses_of_kernel(folder) if any(map(records.is_active, roots)) else []
    for root in roots:
        is_active = records.is_active(root)
        state = WAITING if is_active else INTERRUPTED
        try:
            replay = await records.replay(root)
        except DamagedTree as problem:
            records.damage_by_root[root] = problem
            continue
        dated += open_questions(replay, state)
        if not is_active or paused is None:
            dated += paused_runs(replay, state)
    return [each.question for each in sorted([*dated, *(paused or ())], key=lambda each: each.at)]


async def _pauses_of_kernel(folder: Path) -> list[DatedQuestion] | None:
    """Return the paused runs of the kernel in a folder; None if it does not answer, or does not know the request."""
    rows, after = list[dict[str, Any]](), ""
    try:
        while True:
            page = await send_request(folder, ListPauses(after=after), patience_s=PATIENCE_S)
            rows += page["pauses"]
            if not (after := page["more"]):
                break
    except (NoKernel, Refused):
        return None
    return [DatedQuestion(convert(each["asked_at"], datetime), convert(each, Question)) for each in rows]


def open_questions(replay: TreeReplay, state: str = WAITING) -> list[DatedQuestion]:
    """Return the unanswered questions of a tree, and the messages of other sessions that it holds."""
    return [
        DatedQuestion(
            approval.at or _EARLY,
            Question(
                id=id,
                run=run.id,
                path=run.spawn_event.path,
                agent=run.spawn_event.agent,
                tool=approval.tool,
                question=approval.question,
                args=approval.args,
                state=state,
                usage=run.subtree,
                for_run=approval.for_run,
            ),
        )
        for run in replay.runs.values()
        for id, approval in (*run.approvals.items(), *(() if run.is_over else run.held_messages.items()))
        if id not in run.approval_answers
    ]


def paused_runs(replay: TreeReplay, state: str = WAITING) -> list[DatedQuestion]:
    """Return the runs of a tree that wait at limits."""
    return [
        DatedQuestion(
            each.pause.at or _EARLY,
            Question(
                id=each.id,
                run=each.run.id,
                path=each.run.spawn_event.path,
                agent=each.run.spawn_event.agent,
                tool="",
                question=describe_pause(each.limit),
                args={},
                state=state,
                kind="limit",
                limit=each.limit,
                usage=each.run.subtree,
            ),
        )
        for each in recorded_pauses(replay)
    ]
