"""An assertion that code does what a journal did: see `ramet.host.code_replay`."""

from __future__ import annotations

import os
import pathlib

from ramet.core.arguments import check_instance, check_text
from ramet.host.code_replay.difference_text import difference_lines
from ramet.host.code_replay.replay_code import STALL_S, ReplayReport, replay_code
from ramet.host.control.run_queries import journal_reader


async def assert_replays(
    folder: str | os.PathLike[str], run: str, code: object, /, *, stall_s: float = STALL_S
) -> ReplayReport:
    """Replay the tree of a run, recorded in the journal of a working directory, against code; fail at a difference.

    `code` is an Agent, a list of agents whose first one is the root, or a function: the one that the root was, or one
    that returns an Agent, such a list or a Session, and may take a model for it. No model is asked, no tool runs, and
    the folder is not changed. Raises NoJournal, Unknown, and what `replay_code` raises.
    """
    __tracebackhide__ = True
    check_instance("folder", folder, (str, os.PathLike), "the working directory of a journal")
    check_text("run", run)
    async with await journal_reader(pathlib.Path(folder)) as reader:
        report = await replay_code(reader.events(await reader.tree_of(run)), code, stall_s=stall_s)
    if report.difference is not None:
        raise AssertionError("\n".join(difference_lines(report.difference)))
    return report
