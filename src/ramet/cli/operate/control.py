"""`ramet send`, `stop`, `raise`, `approve` and `deny`: requests to the kernel that runs a tree."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import Any

from rich.text import Text

from ramet.cli.pauses.amounts import required_amounts
from ramet.cli.render.console import console
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import full_id, source_of
from ramet.core.equal_mail import NOT_DELIVERED


async def run_control_command(options: Namespace) -> int:
    """Send the request, and print its outcome; return status 1 if something could not be ended."""
    outcome: dict[str, Any]
    async with source_of(options) as source:
        if options.command in ("send", "stop", "raise"):
            options.id = await full_id(source, options.id)
        match options.command:
            case "send":
                outcome = await source.send(options.id, options.text, options.dedupe)
            case "stop":
                outcome = await source.stop(options.id, "stopped by its user")
            case "raise":
                outcome = await source.raise_limits(options.id, required_amounts(options), options.key or "")
            case verb:
                is_for_run = verb == "approve" and options.for_run
                outcome = await source.answer(options.id, verb == "approve", options.reason, for_run=is_for_run)
    if options.json:
        print_json(json.dumps(outcome, ensure_ascii=True))
    else:
        for line in _lines(options, outcome):
            console(sys.stdout).print(Text(line), soft_wrap=True)
    return 1 if outcome.get("left") else 0


def _lines(options: Namespace, outcome: dict[str, Any]) -> list[str]:
    match options.command:
        case "send":
            is_repeated = str(outcome.get("mail", "")).startswith(NOT_DELIVERED)
            return [one_line(outcome["mail"], 400) if is_repeated else f"sent to {options.id}"]
        case "stop":
            stopped = [f"stopped {one_line(path, 400)}" for path in outcome["stopped"]]
            return stopped + [f"could not be ended: {one_line(call, 400)}" for call in outcome["left"]]
        case "raise":
            limits = ", ".join(f"{name} {value:g}" for name, value in outcome["limits"].items() if name != "at_limit")
            return [f"the limits of {options.id} are now {limits}"]
        case verb:
            later = ", and so are later calls like it of this run" if outcome.get("for_run") else ""
            return [f"{options.id} is {'allowed' if verb == 'approve' else 'not allowed'}{later}"]
