"""Functions that agents of the type "function" are, for tests."""

from __future__ import annotations

import asyncio
import importlib.util
import pathlib
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

KEPT = "a text"


def shout(text: str) -> str:
    """The text, louder."""
    return text.upper()


def remembers(text: str, history: list[dict[str, str]]) -> str:
    """What was said before, and now."""
    return " | ".join([*(f"{each['role']}: {each['content']}" for each in history), text])


def measures(text: str, history: list[dict[str, str]]) -> str:
    """How long what was said before is, and what was said first of that; then a text as long as this one."""
    first = history[0]["content"][:20] if history else ""
    return f"{len(history)} messages, {sum(len(each['content']) for each in history)} characters, {first!r}\n{text}"


async def measures_and_waits(text: str, history: list[dict[str, str]]) -> AsyncIterator[str]:
    """The same, and go on for long."""
    yield measures(text, history)
    await asyncio.sleep(600)


def leaves_a_mark(place: str) -> str:
    """Make a file."""
    pathlib.Path(place).touch()
    return "left"


def prints(text: str) -> dict[str, Any]:
    """Print each word; data comes back."""
    for word in text.split():
        print(word)  # noqa: T201 - that is what is tried
    return {"words": len(text.split())}


def waits_for_a_module(name: str) -> Iterator[str]:
    """Say so, and then what a module says that is not there yet."""
    yield "waiting "
    while importlib.util.find_spec(name) is None:
        time.sleep(0.01)
    yield importlib.import_module(name).WORD


def yields(text: str) -> Iterator[str]:
    """Word for word."""
    yield from text.split()


async def yields_async(text: str) -> AsyncIterator[str]:
    """Word for word, in an event loop."""
    for word in text.split():
        await asyncio.sleep(0)
        yield word


def starts(text: str) -> str:
    """Have another agent say it louder."""
    from ramet.sub_agent_client import send_message, spawn_sub_agent

    try:
        if text.startswith("mail "):
            return send_message("main", text)
        return str(spawn_sub_agent(shout if text != "repeat" else yields, args=(text,)).output)
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"


def breaks(text: str) -> str:
    """Say something, then fail."""
    print("so far", flush=True)  # noqa: T201
    raise ValueError(f"not {text}")


def sleeps(text: str) -> str:
    """Say that it has begun, and go on for long."""
    print("begun", flush=True)  # noqa: T201
    time.sleep(600)
    return text


async def waits(text: str) -> AsyncIterator[str]:
    """The same, in the host."""
    yield "begun"
    await asyncio.sleep(600)
