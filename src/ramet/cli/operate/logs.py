"""`ramet logs`, `export` and `replay`: the events of a run or a tree, for people and for programs."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from rich.text import Text

from ramet.cli.errors import print_error
from ramet.cli.render.console import console
from ramet.cli.render.events import line_of
from ramet.cli.render.tree_model import TreeModel
from ramet.cli.sources.choose import source_of
from ramet.cli.sources.id_prefixes import full_id
from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.events import Event, encode

LONGEST_PAUSE_S = 3600.0  #: of a replay; a tree may have been idle for days


def logs(options: Namespace) -> int:
    """Print the events."""
    return asyncio.run(_logs(options))


async def _logs(options: Namespace) -> int:
    async with source_of(options) as source:
        options.id = await full_id(source, options.id)
        whole = await source.root_of(options.id) == options.id
        read = source.follow if options.follow else source.events
        await _print_all(read(options.id, tree=whole), _EventPrinter(as_json=options.json))
        if options.follow and not all(
            row.is_over for row in await source.tree(options.id) if whole or row.id == options.id
        ):
            print_error(f"{options.id} was interrupted: {source.interrupted_hint}")
    return 0


def export(options: Namespace) -> int:
    """Write events as JSON lines."""
    return asyncio.run(_export(options))


async def _export(options: Namespace) -> int:
    async with source_of(options) as source:
        options.id = await full_id(source, options.id)
        await _print_all(source.events(options.id, tree=options.tree), _EventPrinter(as_json=True))
    return 0


def replay(options: Namespace) -> int:
    """Print the events again, with their pauses."""
    return asyncio.run(_replay(options, SystemClock()))


async def _replay(options: Namespace, clock: Clock) -> int:
    async with source_of(options) as source:
        options.id = await full_id(source, options.id)
        whole = await source.root_of(options.id) == options.id
        events = with_pauses(source.events(options.id, tree=whole), options.speed, clock)
        await _print_all(events, _EventPrinter(as_json=options.json))
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


async def _print_all(events: AsyncGenerator[Event], printer: _EventPrinter) -> None:
    async with aclosing(events):
        async for event in events:
            printer.take(event)


class _EventPrinter:
    """A printer of events, which prints each at once."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._model, self._out = as_json, TreeModel(), console(sys.stdout)

    def take(self, event: Event) -> None:
        if self._as_json:
            sys.stdout.buffer.write(encode(event) + b"\n")
            sys.stdout.buffer.flush()
            return
        self._model.apply(event)
        line = line_of(event, self._model)
        if line is not None:
            self._out.print(Text(line), soft_wrap=True)
            sys.stdout.flush()


VERBS: dict[str, Callable[[Namespace], int]] = {"logs": logs, "export": export, "replay": replay}
