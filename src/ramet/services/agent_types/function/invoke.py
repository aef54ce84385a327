"""Calling a function for one turn: in a sandbox, or in a thread of the host."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

History = Sequence[Mapping[str, str]]


def call_named(module: str, name: str, text: str, history: History) -> Any:
    """Import a function and call it in a sandbox; print each piece that the function yields."""
    return call_inside(getattr(importlib.import_module(module), name), text, history)


def call_inside(function: Callable[..., Any], text: str, history: History) -> Any:
    """Call a function in a sandbox; print each piece that the function yields."""

    def out(piece: str) -> None:
        sys.stdout.write(piece)
        sys.stdout.flush()

    return call(function, text, history, out)


def call(function: Callable[..., Any], text: str, history: History, out: Callable[[str], None]) -> Any:
    """Return the result of the function; pass each piece that the function yields to `out`."""
    result = begin(function, text, history)
    if inspect.isawaitable(result) or inspect.isasyncgen(result):
        return asyncio.run(finish(result, out))
    return _pieces(result, out) if inspect.isgenerator(result) else result


def begin(function: Callable[..., Any], text: str, history: History) -> Any:
    """Call the function with the text, and with the history if the function takes a second positional argument."""
    return function(text, [dict(each) for each in history]) if takes_history(function) else function(text)


def takes_history(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind("", [])
    except (TypeError, ValueError):
        return False
    return True


async def finish(result: Any, out: Callable[[str], None]) -> Any:
    """Await the result of an async function, or consume an async generator."""
    return await _async_pieces(result, out) if inspect.isasyncgen(result) else await result


def _pieces(result: Iterator[Any], out: Callable[[str], None]) -> Any:
    while True:
        try:
            out(str(next(result)))
        except StopIteration as end:
            return end.value


async def _async_pieces(result: AsyncIterator[Any], out: Callable[[str], None]) -> None:
    async for piece in result:
        out(str(piece))
