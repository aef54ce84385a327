"""Comparison of a request with the recorded request that is most like it, for a reader."""

from __future__ import annotations

import difflib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ramet.testing.recordings.recording_file import Messages, Request

MAX_LINES: Final = 40  #: that differ, or stand beside one that does
MAX_COMPARED: Final = 400  #: lines of each side: comparing takes the product of both
MAX_WIDTH: Final = 200


def difference(request: Request, recorded: Sequence[Request]) -> str:
    """Return the lines in which a request differs from the recorded request that begins most like it."""
    if not recorded:
        return "the recording has no request"
    number, nearest = max(enumerate(recorded, 1), key=lambda each: _likeness(request, each[1]))
    equal = _equal_messages(request.messages, nearest.messages)
    if equal == len(request.messages) == len(nearest.messages) and request.tools == nearest.tools:
        return f"request {number} is the same, but its reply was played already"
    lines = difflib.unified_diff(
        list(itertools.islice(_lines(nearest, equal), MAX_COMPARED)),
        list(itertools.islice(_lines(request, equal), MAX_COMPARED)),
        f"request {number} of {len(recorded)} in the recording",
        "this request",
        n=1,
        lineterm="",
    )
    shown = [line for line in lines if not line.startswith("@@")]
    more = [f"… and {len(shown) - MAX_LINES} more lines"] if len(shown) > MAX_LINES else []
    same = [f"equal messages before these lines: {equal}"] if equal else []
    return "\n".join([*same, *shown[:MAX_LINES], *more])


def _likeness(request: Request, other: Request) -> tuple[int, bool, float, int]:
    """Return how alike two requests are: by their first messages, then by the next one, then by their length."""
    equal = _equal_messages(request.messages, other.messages)
    next_messages = [each.messages[equal] if equal < len(each.messages) else {} for each in (request, other)]
    texts = [str(message.get("content", ""))[:MAX_WIDTH] for message in next_messages]
    ratio = difflib.SequenceMatcher(None, texts[0], texts[1], autojunk=False).quick_ratio()
    is_same_type = next_messages[0].get("type") == next_messages[1].get("type")
    return equal, is_same_type, ratio, -abs(len(request.messages) - len(other.messages))


def _equal_messages(messages: Messages, others: Messages) -> int:
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(messages, others, strict=False))
    return sum(1 for _ in pairs)


def _lines(request: Request, skip: int) -> Iterator[str]:
    yield f"tools: {', '.join(request.tools) or 'none'}"[:MAX_WIDTH]
    for message in request.messages[skip:]:
        yield from _lines_of(message)


def _lines_of(message: dict[str, Any]) -> Iterator[str]:
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content)
    for number, line in enumerate(text.splitlines() or [""]):
        yield f"{message.get('type') if number == 0 else '':>6}: {line}"[:MAX_WIDTH]
    for name in sorted(message.keys() - {"type", "content"}):
        yield f"{'':>6}  {name} = {json.dumps(message[name])}"[:MAX_WIDTH]
