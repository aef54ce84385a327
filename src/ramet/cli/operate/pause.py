"""`ramet pause`, and `ramet resume` where a kernel runs: a run and all runs below it are paused, and go on."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import Any

from rich.text import Text

from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import full_id, source_of
from ramet.cli.sources.contract import Source
from ramet.core.errors import Gone, InvalidValue, Unknown


async def run_pause_command(options: Namespace) -> int:
    """Pause a run, or all active trees, or end these pauses; print what happened."""
    if options.all is (options.id is not None):
        raise InvalidValue("ID", options.id, "one run, or --all")
    async with source_of(options) as source:
        runs = await _active_roots(source) if options.all else [await full_id(source, options.id)]
        for run in runs:
            try:
                outcome = await _apply(source, run, options)
            except (Gone, Unknown):
                if not options.all:
                    raise
                continue  # It has ended meanwhile.
            if options.json:
                print_json(json.dumps({"run": run, **outcome}, ensure_ascii=True))
            else:
                for line in _lines(run, outcome):
                    console(sys.stdout).print(Text(line), soft_wrap=True)
    if not runs:
        print_note("no tree is active")
    return 0


async def _active_roots(source: Source) -> list[str]:
    return [row.id for row in await source.runs() if row.depth == 0]


async def _apply(source: Source, run: str, options: Namespace) -> dict[str, Any]:
    if options.command == "pause":
        return await source.pause(run, options.reason, now=options.now)
    return await source.resume(run)


def _lines(run: str, outcome: dict[str, Any]) -> list[str]:
    if "paused" not in outcome:
        return [f"{run} goes on"]
    working = [f"still at work, and pauses then: {one_line(path, 400)}" for path in outcome["working"]]
    return [f"paused {one_line(path, 400)}" for path in outcome["paused"]] + working
