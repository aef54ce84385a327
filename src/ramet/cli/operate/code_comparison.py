"""`ramet replay --against`: would this code do what that journal did?"""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from pathlib import Path

import msgspec
from rich.text import Text

from ramet.agent.definition import Agent
from ramet.agent.files.agent_file import MAX_FILE, parse_agent
from ramet.agent.files.bounded_read import Unreadable, read_text
from ramet.cli.errors import FAILURE, set_up_logging
from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import sanitize
from ramet.cli.run import function_of
from ramet.cli.sources.choose import full_id, source_of
from ramet.core.errors import InvalidValue
from ramet.host.code_replay.difference_text import difference_lines
from ramet.host.code_replay.replay_code import ReplayReport, replay_code

OPTION = "--against"


async def compare_code(options: Namespace) -> int:
    """Replay a tree against code; return 0 if it does the same, 1 at a difference."""
    set_up_logging()
    out, as_json = sys.stdout, options.json
    with contextlib.redirect_stdout(sys.stderr):  # What code prints is no report.
        code = code_of(options.against, options.dir or Path.cwd())
        async with source_of(options) as source:
            root = await source.root_of(await full_id(source, options.id))
            try:
                report = await replay_code(source.events(root, tree=True), code, stall_s=options.stall)
            except InvalidValue as problem:
                if problem.field != "code":
                    raise
                raise InvalidValue(OPTION, problem.value, problem.accepted) from None
    with contextlib.redirect_stdout(out):
        _print(report, as_json=as_json)
    return 0 if report.is_same else FAILURE


def code_of(reference: str, folder: Path) -> object:
    """Return the code that an option names, as seen from a folder. Raises InvalidValue if there is none."""
    if not reference.endswith(".md"):
        try:
            return function_of(reference, folder)
        except InvalidValue as problem:
            accepted = f"{problem.accepted}, or the path of an agent file (.md)"
            raise InvalidValue(OPTION, reference, accepted) from None
    return _agent_in(folder / reference)


def _agent_in(path: Path) -> Agent:
    try:
        return parse_agent(read_text(path, limit=MAX_FILE).text, source=path, scope="call").agent
    except Unreadable as problem:
        raise InvalidValue(OPTION, str(path), f"an agent file that can be read ({problem.reason})") from None


def _print(report: ReplayReport, *, as_json: bool) -> None:
    if as_json:
        data = {"same": report.is_same, **msgspec.to_builtins(report)}
        print_json(msgspec.json.encode(data))
        return
    steps = f"{report.steps:,} steps of {report.runs:,} runs"
    if report.difference is None:
        lines = [f"same: {steps}"]
    else:
        lines = [f"different after {steps}", *difference_lines(report.difference)]
    if report.ends_early:
        lines.append("The record ends before the tree does.")
    for line in lines:
        console(sys.stdout).print(Text(sanitize(line)), soft_wrap=True)
    for each in report.not_compared:
        print_note(f"not replayed: {each}")
