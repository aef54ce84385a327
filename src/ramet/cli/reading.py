"""`ramet logs`, `export` and `replay`: the events of a run or a tree, for people and for programs."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing

from rich.text import Text

from ramet.cli.consoles import console
from ramet.cli.picture import Picture
from ramet.cli.problems import say
from ramet.cli.telling import line_of
from ramet.concurrency.clock import Clock, SystemClock
from ramet.core.events import Event, encode
from ramet.host.records import Records, records_of

LONGEST_PAUSE_S = 3600.0  #: of a replay; a tree may have slept for days


def logs(options: Namespace) -> int:
    """Tell what happened."""
    return asyncio.run(_logs(options))


async def _logs(options: Namespace) -> int:
    async with await records_of(options.dir) as records:
        root, run = await _named(records, options.id)
        events = records.follow(root, run=run) if options.follow else records.events(root, run=run)
        telling = _Telling(as_json=options.json)
        async with aclosing(events):
            async for event in events:
                telling.take(event)
        if options.follow and not all(row.is_over for row in await records.rows(root) if run in (None, row.id)):
            say(f"{options.id} was interrupted: no kernel is at work here; ramet resume goes on with it")
    return 0


def export(options: Namespace) -> int:
    """Write events as JSON lines."""
    return asyncio.run(_export(options))


async def _export(options: Namespace) -> int:
    async with await records_of(options.dir) as records:
        root = await records.tree_of(options.id)
        await _all(records.events(root, run=None if options.tree else options.id), _Telling(as_json=True))
    return 0


def replay(options: Namespace) -> int:
    """Tell it again, with its pauses."""
    return asyncio.run(_replay(options, SystemClock()))


async def _replay(options: Namespace, clock: Clock) -> int:
    async with await records_of(options.dir) as records:
        root, run = await _named(records, options.id)
        events = with_pauses(records.events(root, run=run), options.speed, clock)
        await _all(events, _Telling(as_json=options.json))
    return 0


async def with_pauses(events: AsyncGenerator[Event], speed: float, clock: Clock) -> AsyncGenerator[Event]:
    """Events as far apart as they were, so many times as fast; 0 means at once."""
    before = None
    async with aclosing(events):
        async for event in events:
            if speed > 0 and event.at is not None and before is not None:
                pause = (event.at - before).total_seconds() / speed
                await clock.sleep(min(max(pause, 0.0), LONGEST_PAUSE_S))
            before = event.at or before
            yield event


async def _all(events: AsyncGenerator[Event], telling: _Telling) -> None:
    async with aclosing(events):
        async for event in events:
            telling.take(event)


async def _named(records: Records, id: str) -> tuple[str, str | None]:
    """The tree, and the run that was meant: None for all of them, if it is the root."""
    root = await records.tree_of(id)
    return root, None if id == root else id


class _Telling:
    """Prints events as they come, each at once."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json, self._picture, self._out = as_json, Picture(), console(sys.stdout)

    def take(self, event: Event) -> None:
        if self._as_json:
            sys.stdout.buffer.write(encode(event) + b"\n")
            sys.stdout.buffer.flush()
            return
        self._picture.take(event)
        line = line_of(event, self._picture)
        if line is not None:
            self._out.print(Text(line), soft_wrap=True)
            sys.stdout.flush()


VERBS: dict[str, Callable[[Namespace], int]] = {"logs": logs, "export": export, "replay": replay}
