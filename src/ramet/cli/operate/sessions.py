"""`ramet sessions`: list, show and remove recorded conversations."""

from __future__ import annotations

import asyncio
import json
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from rich.text import Text

from ramet.cli.errors import report_damage
from ramet.cli.operate.ps import print_table
from ramet.cli.render import formatting
from ramet.cli.render.answer import print_text
from ramet.cli.render.console import console
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import source_of
from ramet.core.errors import Damaged
from ramet.host.sessions.rows import SessionRow
from ramet.models.messages import decode

_ROLES = {"human": "user", "ai": "agent", "tool": "tool", "system": "system"}


def list_sessions(options: Namespace) -> int:
    """List the conversations, the newest first; return 1 if some trees cannot be read."""
    rows, remaining, errors = asyncio.run(_rows(options))
    if options.json:
        for row in rows:
            print(msgspec.json.encode(row).decode())
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
        _print_note(f"{remaining if remaining > 0 else 'some'} older; ramet sessions list --limit 0 lists all")
    elif not (rows or errors):
        _print_note("no conversation is recorded here")
    return report_damage(errors)


def show(options: Namespace) -> int:
    """Show the messages of one conversation."""
    row, messages = asyncio.run(_session(options))
    if options.json:
        print(msgspec.json.encode(row).decode())
        for each in messages:
            print(json.dumps(each, ensure_ascii=True))
        return 0
    out = console(sys.stdout)
    _print_note(f"{one_line(row.id)}: {row.state}, {formatting.count(row.turns, 'turn')}, root {row.root}")
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


def rm(options: Namespace) -> int:
    """Remove a conversation, with everything that its tree left."""
    root = asyncio.run(_remove(options))
    if options.json:
        print(json.dumps({"session": options.id, "root": root}, ensure_ascii=True))
    else:
        _print_note(f"removed {one_line(options.id)}")
    return 0


async def _rows(options: Namespace) -> tuple[Sequence[SessionRow], int, Sequence[Damaged]]:
    async with source_of(options) as source:
        rows, remaining = await source.sessions(options.limit)
        return rows, remaining, source.damage_errors


async def _session(options: Namespace) -> tuple[SessionRow, Sequence[Mapping[str, Any]]]:
    async with source_of(options) as source:
        return await source.session(options.id, options.last)


async def _remove(options: Namespace) -> str:
    async with source_of(options) as source:
        return await source.remove_session(options.id)


def _print_note(text: str) -> None:
    console(sys.stderr).print(Text(text, "dim"), soft_wrap=True)


VERBS: dict[str, Callable[[Namespace], int]] = {"list": list_sessions, "show": show, "rm": rm}
