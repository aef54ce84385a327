"""`ramet passages`: list the events of the safety gates, filtered, in pages, or continuously."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from contextlib import aclosing

import msgspec
from rich.text import Text

from ramet.cli.render.console import console, print_note
from ramet.cli.render.json_output import print_json
from ramet.cli.render.sanitize import one_line
from ramet.cli.sources.choose import full_id, source_of
from ramet.cli.sources.contract import Source
from ramet.core.errors import InvalidValue
from ramet.core.events import IntentionDecided, IntentionRecorded, ToolEnded, encode
from ramet.host.safety.inspection import KINDS, GateEvent, GateEventFilter

MAX_LIMIT = 1_000  #: passages of one page, as on a server
_MAX_ARGS = 200  #: characters of a call's arguments
_MAX_REASON = 200  #: characters of a reason


async def list_gate_events(options: Namespace) -> int:
    """List the events; with `follow` continue without an end."""
    if options.limit > MAX_LIMIT:
        raise InvalidValue("--limit", options.limit, f"a whole number from 1 to {MAX_LIMIT}")
    async with source_of(options) as source:
        gate_filter = await _filter(source, options)
        if options.follow:
            async with aclosing(source.follow_gate_events(gate_filter, after=options.after)) as events:
                async for each in events:
                    _show(each, as_json=options.json)
            return 0
        page = await source.gate_events(gate_filter, after=options.after, limit=options.limit)
        for each in page.entries:
            _show(each, as_json=options.json)
        # Only a look at the next entry shows whether a full page is the last one.
        if page.more and (await source.gate_events(gate_filter, after=page.cursor, limit=1)).entries:
            print_note(f"there are more: --after {page.cursor}")
    return 0


async def _filter(source: Source, options: Namespace) -> GateEventFilter:
    """Return the filter. Raises Unknown for an unrecorded run, and InvalidValue for an ambiguous id."""
    run = await full_id(source, options.run) if options.run else None
    tree = await source.root_of(await full_id(source, options.tree)) if options.tree else None
    if run is not None:
        await source.root_of(run)
    return GateEventFilter(
        tree=tree,
        run=run,
        path=options.path,
        tool=options.tool,
        kinds=tuple(options.kind) or KINDS,
        committed=True if options.committed else False if options.aborted else None,
    )


def _show(passage: GateEvent, *, as_json: bool) -> None:
    if as_json:
        row = {"cursor": passage.cursor, "kind": passage.kind, "event": msgspec.json.decode(encode(passage.event))}
        print_json(json.dumps(row, ensure_ascii=True))
    else:
        text = f"{passage.cursor}  {one_line(passage.event.path, 100)}  {_describe(passage)}"
        console(sys.stdout).print(Text(text), soft_wrap=True)
    sys.stdout.flush()


def _describe(passage: GateEvent) -> str:
    event = passage.event
    tool = one_line(event.tool, 60)
    match event:
        case IntentionRecorded():
            args = one_line(json.dumps(event.args, ensure_ascii=False, default=str), _MAX_ARGS)
            return f"intends  {tool} {args}  (policy {one_line(event.policy, 60)}, version {event.version})"
        case IntentionDecided():
            votes = ", ".join(f"{one_line(each.voter, 60)} {each.verdict}" for each in event.votes)
            reason = f": {one_line(event.reason, _MAX_REASON)}" if event.reason else ""
            return f"{'commits ' if event.committed else 'aborts  '} {tool}{reason}" + (f"  ({votes})" if votes else "")
        case ToolEnded():
            return f"output   {tool} {event.status}"
