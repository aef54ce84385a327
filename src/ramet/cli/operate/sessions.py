"""`ramet sessions`: list, show and remove recorded conversations."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

import msgspec
from rich.text import Text

from ramet.cli.errors import report_damage
from ramet.cli.operate.ps import print_table
from ramet.cli.render import formatting
from ramet.cli.render.answer import print_text
from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import source_of
from ramet.models.messages import decode

_ROLES = {"human": "user", "ai": "agent", "tool": "tool", "system": "system"}


async def sessions(options: Namespace) -> int:
    """Run the verb; return 1 if some trees cannot be read."""
    match options.verb:
        case "list":
            return await _list(options)
        case "show":
            return await _show(options)
        case _:
            return await _remove(options)


async def _list(options: Namespace) -> int:
    async with source_of(options) as source:
        rows, remaining = await source.sessions(options.limit)
        errors = source.damage_errors
    if options.json:
        for row in rows:
            print_json(msgspec.json.encode(row))
        return report_damage(errors)
    lines = [
        (
            one_line(row.id, 60),
            row.state,
            str(row.turns),
            f"{row.began:%Y-%m-%d %H:%M}" if row.began is not None else "",
            f"{formatting.tokens(row.usage.tokens)} tokens, {formatting.money(row.usage.usd)}",
            one_line(row.first_prompt, 60),
        )
        for row in rows
    ]
    print_table(("SESSION", "STATE", "TURNS", "BEGAN (UTC)", "USAGE", "FIRST PROMPT"), lines)
    if remaining:
        print_note(f"{remaining if remaining > 0 else 'some'} older; ramet sessions list --limit 0 lists all")
    elif not (rows or errors):
        print_note("no conversation is recorded here")
    return report_damage(errors)


async def _show(options: Namespace) -> int:
    async with source_of(options) as source:
        row, messages = await source.session(options.id, options.last)
    if options.json:
        print_json(msgspec.json.encode(row))
        for each in messages:
            print_json(json.dumps(each, ensure_ascii=True))
        return 0
    out = console(sys.stdout)
    print_note(f"{one_line(row.id)}: {row.state}, {formatting.count(row.turns, 'turn')}, root {row.root}")
    for each in messages:
        message = decode(each)
        text = str(message.text)
        calls = [one_line(call["name"], 60) for call in getattr(message, "tool_calls", ())]
        out.print(Text(f"{_ROLES.get(message.type, message.type)}:", "bold"), soft_wrap=True)
        if text:
            print_text(out, text)
        if calls:
            out.print(Text(f"[calls {', '.join(calls)}]", "dim"), soft_wrap=True)
    return 0


async def _remove(options: Namespace) -> int:
    async with source_of(options) as source:
        root = await source.remove_session(options.id)
    if options.json:
        print_json(json.dumps({"session": options.id, "root": root}, ensure_ascii=True))
    else:
        print_note(f"removed {one_line(options.id)}")
    return 0
