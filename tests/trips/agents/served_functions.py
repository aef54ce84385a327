"""Functions that tests serve as agents of the type "function"."""

from __future__ import annotations

import asyncio
import importlib.util
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

KEPT = "a text"


def shout(text: str) -> str:
    """Return the text in capitals."""
    return text.upper()


def remembers(text: str, history: list[dict[str, str]]) -> str:
    """Return the history and the text."""
    return " | ".join([*(f"{each['role']}: {each['content']}" for each in history), text])


def measures(text: str, history: list[dict[str, str]]) -> str:
    """Return the size of the history, the start of its first message, and the text."""
    first = history[0]["content"][:20] if history else ""
    return f"{len(history)} messages, {sum(len(each['content']) for each in history)} characters, {first!r}\n{text}"


async def measures_and_waits(text: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
    """Yield what `measures` returns, and wait for a long time."""
    yield measures(text, history)
    await asyncio.sleep(600)


def leaves_a_mark(path: str) -> str:
    """Create a file."""
    pathlib.Path(path).touch()
    return "left"


def prints(text: str) -> dict[str, Any]:
    """Print each word, and return data."""
    for word in text.split():
        print(word)  # noqa: T201 - that is what is tried
    return {"words": len(text.split())}


def waits_for_a_module(name: str) -> Iterator[str]:
    """Yield a word, and then a word of a module that is not there yet."""
    yield "waiting "
    while importlib.util.find_spec(name) is None:
        time.sleep(0.01)
    yield importlib.import_module(name).WORD


def yields(text: str) -> Iterator[str]:
    """Yield each word."""
    yield from text.split()


async def yields_async(text: str) -> AsyncIterator[str]:
    """Yield each word in an event loop."""
    for word in text.split():
        await asyncio.sleep(0)
        yield word


def starts(text: str) -> str:
    """Let another agent return the text in capitals, or send mail."""
    from ramet.sub_agent_client import send_message, spawn_sub_agent

    try:
        if text.startswith("mail "):
            return send_message("main", text)
        return str(spawn_sub_agent(shout if text != "repeat" else yields, args=(text,)).output)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def breaks(text: str) -> str:
    """Print a line, then raise ValueError."""
    print("so far", flush=True)  # noqa: T201
    raise ValueError(f"not {text}")


def sleeps(text: str) -> str:
    """Print a line, and sleep for a long time."""
    print("begun", flush=True)  # noqa: T201
    time.sleep(600)
    return text


async def waits(text: str) -> AsyncIterator[str]:
    """Yield a word, and wait for a long time in the event loop."""
    yield "begun"
    await asyncio.sleep(600)
