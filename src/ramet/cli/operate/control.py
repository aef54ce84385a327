"""`ramet send`, `stop`, `approve` and `deny`: requests to the kernel that runs a tree."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from typing import Any

from rich.text import Text

from ramet.cli.render.console import console
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.id_prefixes import full_id
from ramet.core.equal_mail import NOT_DELIVERED


def run_control_command(options: Namespace) -> int:
    """Send the request, and print its outcome; return status 1 if something could not be ended."""
    outcome = asyncio.run(_ask(options))
    if options.json:
        print(json.dumps(outcome, ensure_ascii=True))
        return 1 if outcome.get("left") else 0
    out = console(sys.stdout)
    for line in _lines(options, outcome):
        out.print(Text(line), soft_wrap=True)
    return 1 if outcome.get("left") else 0


async def _ask(options: Namespace) -> dict[str, Any]:
    async with source_of(options) as source:
        if options.command in ("send", "stop"):
            options.id = await full_id(source, options.id)
        match options.command:
            case "send":
                return await source.send(options.id, options.text, options.dedupe)
            case "stop":
                return await source.stop(options.id, "stopped by its user")
            case verb:
                return await source.answer(options.id, verb == "approve", options.reason)


def _lines(options: Namespace, outcome: dict[str, Any]) -> list[str]:
    match options.command:
        case "send":
            is_repeated = str(outcome.get("mail", "")).startswith(NOT_DELIVERED)
            return [one_line(outcome["mail"], 400) if is_repeated else f"sent to {options.id}"]
        case "stop":
            stopped = [f"stopped {one_line(path, 400)}" for path in outcome["stopped"]]
            return stopped + [f"could not be ended: {one_line(call, 400)}" for call in outcome["left"]]
        case verb:
            return [f"{options.id} is {'allowed' if verb == 'approve' else 'not allowed'}"]
