"""`ramet send`, `stop`, `approve` and `deny`: a word to the kernel that is at work in a folder."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from rich.text import Text

from ramet.cli.clean import one_line
from ramet.cli.consoles import console
from ramet.cli.problems import FAILURE, USAGE, say
from ramet.host.doorbell import Answer, NoKernel, Refused, Request, Send, Stop, ring
from ramet.host.records import INTERRUPTED, NoJournal, journal_in, kernel_of, records_of

_OF_CALLER = ("InvalidValue", "Unknown")  #: refusals of what was written on the command line


def steer(options: Namespace) -> int:
    """Ask the kernel, and say what came of it."""
    try:
        said = asyncio.run(ring(options.dir, _request(options)))
    except Refused as refusal:
        say(str(refusal))
        return USAGE if refusal.kind in _OF_CALLER else FAILURE
    except NoKernel as nobody:
        say(asyncio.run(_why(options, str(nobody))))
        return FAILURE
    if options.json:
        print(json.dumps(said, ensure_ascii=True))
        return 1 if said.get("left") else 0
    out = console(sys.stdout)
    for line in _lines(options, said):
        out.print(Text(line), soft_wrap=True)
    return 1 if said.get("left") else 0


def _request(options: Namespace) -> Request:
    match options.command:
        case "send":
            return Send(run=options.id, text=options.text)
        case "stop":
            return Stop(run=options.id)
        case verb:
            return Answer(approval=options.id, allowed=verb == "approve", reason=options.reason)


def _lines(options: Namespace, said: dict[str, Any]) -> list[str]:
    match options.command:
        case "send":
            return [f"sent to {options.id}"]
        case "stop":
            stopped = [f"stopped {one_line(path, 400)}" for path in said["stopped"]]
            return stopped + [f"could not be ended: {one_line(call, 400)}" for call in said["left"]]
        case verb:
            return [f"{options.id} is {'allowed' if verb == 'approve' else 'not allowed'}"]


async def _why(options: Namespace, nobody: str) -> str:
    """Why nobody answered, by what the journal says of the run."""
    folder: Path = options.dir
    try:
        kernel = kernel_of(journal_in(folder))
    except NoJournal:
        return nobody
    if kernel is not None:
        return f"the kernel in {folder} (pid {kernel.pid}) has no door, or does not answer"
    if options.command not in ("send", "stop"):
        return nobody
    async with await records_of(folder) as records:
        rows = await records.rows(await records.tree_of(options.id))
    row = next(row for row in rows if row.id == options.id)
    if row.state == INTERRUPTED:
        return f"{nobody}: {options.id} was interrupted; first go on with it: ramet resume {options.id}"
    return f"{nobody}: {options.id} has ended ({row.state})"
