"""Format an event as a line for a log: everything that `progress` shows, and the messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ramet.cli.render.formatting import count
from ramet.cli.render.progress import describe
from ramet.cli.render.sanitize import one_line
from ramet.cli.render.tree_model import TreeModel
from ramet.core.events import Event, MailPushed, MessageRecorded, RunResumed, RunRetried, SandboxStarted, ToolEnded

_LIMIT = 400
_VERBS = {"human": "receives", "ai": "replies", "system": "is instructed"}


def line_of(event: Event, model: TreeModel) -> str | None:
    """Return the line of an event, with its time in UTC; None if there is nothing to show.

    The model has the event already.
    """
    line = describe(event, model)
    text = line.text if line is not None else None
    if text is None and (details := _details(event)) is not None:
        text = f"{one_line(event.path, 120)}: {details}"
    if text is None:
        return None
    return f"{event.at:%Y-%m-%d %H:%M:%S} {text}" if event.at is not None else text


def _details(event: Event) -> str | None:
    match event:
        case MessageRecorded(message=message):
            verb, text = _VERBS.get(str(message.get("type"))), _text(message)
            return f"{verb}: {one_line(text, _LIMIT)}" if verb is not None and text.strip() else None
        case ToolEnded(status="ok"):
            return f"{one_line(event.tool, 40)} answered: {one_line(event.preview, 160)}" if event.preview else None
        case MailPushed():
            return f"message from {one_line(event.sender, 120)}: {one_line(event.text, _LIMIT)}"
        case RunResumed():
            interrupted = f", {count(len(event.cut), 'call')} interrupted" if event.cut else ""
            return f"resumed in another process{interrupted}"
        case SandboxStarted():
            return f"runs in a sandbox: {one_line(event.backend, 40)}, {one_line(event.level, 40)}"
        case RunRetried():
            return f"{one_line(event.status, 40)}, retried in {event.wait_s:.1f}s: {one_line(event.reason)}"
        case _:
            return None


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    return " ".join(str(each.get("text", "")) for each in blocks if isinstance(each, Mapping))
