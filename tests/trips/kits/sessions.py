"""Helpers for trips: calls of the Agent tool, tools that wait or block, and the events of a session."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import BaseTool, StructuredTool

from ramet.core.budget import Budget
from ramet.core.events import Event
from ramet.core.limits import RESOURCES, SpawnLimits
from ramet.core.outcome import Status
from ramet.host.session import Session
from ramet.host.trees.factory import OpenTree
from ramet.models.messages import encode
from ramet.models.scripted.dialogue import Call
from ramet.models.scripted.model import Request
from ramet.spawn.run import Run

E = TypeVar("E", bound=Event)
GENERAL_PURPOSE = "general-purpose"
WIDE_LIMITS = SpawnLimits(depth=10, children=100_000, runs=100_000, running=None)


def specialist_call(prompt: str, name: str | None = None, **more: Any) -> Call:
    """Return a call of the Agent tool for a specialist that knows only `prompt`."""
    name_field = {} if name is None else {"name": name}
    return Call("Agent", {"prompt": prompt, "subagent_type": GENERAL_PURPOSE, **name_field, **more})


def background_call(prompt: str, name: str | None = None, **more: Any) -> Call:
    """Return a call of the Agent tool for a background child."""
    return specialist_call(prompt, name, run_in_background=True, **more)


def fork_call(prompt: str, name: str | None = None, **more: Any) -> Call:
    """Return a call of the Agent tool that copies the caller."""
    name_field = {} if name is None else {"name": name}
    return Call("Agent", {"prompt": prompt, **name_field, **more})


class Gate:
    """A tool whose call waits until the test opens it."""

    def __init__(self, name: str = "gate", *, safe: bool = True) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()
        self.calls = 0
        self.tool: BaseTool = StructuredTool.from_function(
            coroutine=self._wait, name=name, description="Waits.", metadata={"concurrency_safe": safe}
        )

    async def _wait(self) -> str:
        self.calls += 1
        self.entered.set()
        await self.open.wait()
        return "the gate is open"


class BlockingTool:
    """A synchronous tool that does not return until the test lets it."""

    def __init__(self, name: str = "stuck") -> None:
        self.entered = threading.Event()
        self.free = threading.Event()
        self.tool: BaseTool = StructuredTool.from_function(self._sit, name=name, description="Sits.")

    def _sit(self) -> str:
        self.entered.set()
        self.free.wait()
        return "came back late"


def async_tool(function: Callable[..., Any], **metadata: Any) -> BaseTool:
    """Return a tool of a coroutine function, with its metadata."""
    return StructuredTool.from_function(coroutine=function, metadata=metadata)


# --- what a session has on record


def open_tree_of(session: Session) -> OpenTree:
    """Return the tree of a session with its recorder, for reading only."""
    return session._open_tree


def run_of(session: Session, target: str) -> Run:
    """Return a run by name, path or id."""
    return open_tree_of(session).tree.register.find(target)


def session_events(session: Session) -> list[Event]:
    """Return every event so far, in order."""
    return list(open_tree_of(session).recorder.recent_events)


def of_kind(events: Iterable[Event], kind: type[E], path: str | None = None) -> list[E]:
    """Return the events of one kind, of one run if a path is given."""
    return [event for event in events if isinstance(event, kind) and path in (None, event.path)]


@asynccontextmanager
async def follow_events(session: Session, **options: bool) -> AsyncIterator[list[Event]]:
    """Yield a list that `session.events(...)` fills in the background, and close the session on leaving."""
    events: list[Event] = []

    async def follow() -> None:
        async for event in session.events(**options):
            events.append(event)

    task = asyncio.create_task(follow())
    await asyncio.sleep(0)
    try:
        yield events
    finally:
        await session.close()
        await task


def is_tree_idle(session: Session) -> bool:
    """Return whether the root is idle and every other run has ended, which then stays so."""
    root, *others = session.runs()
    return root.state == "idle" and all(view.state in set(Status) - {Status.PAUSED} for view in others)


def scopes(session: Session) -> list[Budget]:
    """Return every budget of the tree once."""
    runs = open_tree_of(session).tree.register.runs.values()
    budgets = {id(each): each for run in runs for each in (run.context.budget, run.own_budget) if each is not None}
    return list(budgets.values())


def has_no_reservation(session: Session) -> bool:
    """Return whether no scope has a reservation."""
    return all(scope.reserved_amount(resource) == 0 for scope in scopes(session) for resource in RESOURCES)


# --- conversations


def typed_texts(messages: Sequence[BaseMessage]) -> list[tuple[str, str]]:
    """Return the type and the text of each message."""
    return [(message.type, str(message.text)) for message in messages]


def encoded_messages(messages: Sequence[BaseMessage]) -> list[dict[str, Any]]:
    """Return the messages as data, which is equal only if the bytes are."""
    return [encode(message) for message in messages]


def requests_of(requests: Sequence[Request], word: str) -> list[Request]:
    """Return the requests whose brief (the first human message) has this word."""
    return [each for each in requests if word in brief_of(each.messages)]


def brief_of(messages: Sequence[BaseMessage]) -> str:
    """Return the first human message, or an empty text."""
    return next((str(message.text) for message in messages if isinstance(message, HumanMessage)), "")


def newest_human(messages: Sequence[BaseMessage]) -> str:
    """Return the newest human message, or an empty text."""
    return next((str(message.text) for message in reversed(messages) if isinstance(message, HumanMessage)), "")


def answers(messages: Sequence[BaseMessage]) -> dict[str, str]:
    """Return the tool results by call id."""
    return {message.tool_call_id: str(message.text) for message in messages if isinstance(message, ToolMessage)}


def is_valid(messages: Sequence[BaseMessage]) -> bool:
    """Return whether a provider accepts the messages: each call is answered once, directly behind its reply."""
    open_calls: list[str] = []
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                return False
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            return False
        if isinstance(message, AIMessage):
            open_calls = [call["id"] or "" for call in (*message.tool_calls, *message.invalid_tool_calls)]
    return not open_calls


def without_system(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages except those of the system."""
    return [message for message in messages if not isinstance(message, SystemMessage)]


def write_files(folder: Path, files: dict[str, str]) -> Path:
    """Write a folder of text files, and return it."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder
