"""The images and documents in results of a guest's tools: checked, and stored before the result is recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from ramet.core import events
from ramet.core.errors import InvalidValue, ProtocolError
from ramet.core.events import MessageRecorded
from ramet.core.media.blocks import checked_content
from ramet.models.request_codec import bounded_json

#: Records below this size hold no file.
_LEAST = 100
_MARKS = (b'"base64"', b";base64,", b'"data"', b'"file_data"')


def may_have_files(body: bytes) -> bool:
    """Return whether a record may hold an image or a document: a quick look, which may say yes without one."""
    return len(body) >= _LEAST and any(mark in body for mark in _MARKS)


async def stored_content(body: bytes, store: Callable[[bytes], Awaitable[str]] | None) -> list[Any] | None:
    """Return the content of a recorded result with its files stored; None if the record has no result with files.

    What is wrong with the record otherwise is for its receiver to refuse.
    """
    line = body.partition(b"\n")[0]
    try:
        bounded_json(line)
        event = events.decode(line)
    except (InvalidValue, ProtocolError):
        return None
    if not isinstance(event, MessageRecorded) or event.message.get("type") != "tool":
        return None
    return await checked_content(event.message.get("content"), store)
