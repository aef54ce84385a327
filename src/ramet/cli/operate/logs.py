"""`ramet logs`, `export` and `replay`: the events of a run or a tree, for people and for programs."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import AsyncGenerator
from contextlib import aclosing

from rich.text import Text

from ramet.cli.errors import print_error
from ramet.cli.render.console import console
from ramet.cli.render.json_output import print_json
from ramet.cli.render.progress import line_of
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.sources.choose import full_id, source_of
from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.events import Event, encode

LONGEST_PAUSE_S = 3600.0  #: of a replay; a tree may have been idle for days


async def logs(options: Namespace) -> int:
    """Print the events."""
    async with source_of(options) as source:
        id = await full_id(source, options.id)
        whole = await source.root_of(id) == id
        await _print_all(source.events(id, tree=whole, follow=options.follow), as_json=options.json)
        if options.follow and not all(row.is_over for row in await source.tree(id) if whole or row.id == id):
            print_error(f"{id} was interrupted: {source.interrupted_hint}")
    return 0


async def export(options: Namespace) -> int:
    """Write events as JSON lines."""
    async with source_of(options) as source:
        await _print_all(source.events(await full_id(source, options.id), tree=options.tree), as_json=True)
    return 0


async def replay(options: Namespace) -> int:
    """Print the events again, with their pauses, or compare code with them."""
    if options.against is not None:
        from ramet.cli.operate.code_comparison import compare_code  # it imports all that runs agents

        return await compare_code(options)
    async with source_of(options) as source:
        id = await full_id(source, options.id)
        events = source.events(id, tree=await source.root_of(id) == id)
        await _print_all(with_pauses(events, options.speed, SystemClock()), as_json=options.json)
    return 0


async def with_pauses(events: AsyncGenerator[Event], speed: float, clock: Clock) -> AsyncGenerator[Event]:
    """Yield events with their original intervals, divided by `speed`; 0 means no pauses."""
    previous = None
    async with aclosing(events):
        async for event in events:
            if speed > 0 and event.at is not None and previous is not None:
                pause = (event.at - previous).total_seconds() / speed
                await clock.sleep(min(max(pause, 0.0), LONGEST_PAUSE_S))
            previous = event.at or previous
            yield event


async def _print_all(events: AsyncGenerator[Event], *, as_json: bool) -> None:
    """Print each event at once."""
    model, out = TreeModel(), console(sys.stdout)
    async with aclosing(events):
        async for event in events:
            if as_json:
                print_json(encode(event))
                continue
            model.apply(event)
            if (line := line_of(event, model)) is not None:
                out.print(Text(line), soft_wrap=True)
                sys.stdout.flush()
