"""A bounded preview of a call's arguments for people. Every omission is marked."""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

MAX_TEXT = 2_000  #: characters of the question, and of each text in the arguments
MAX_ITEMS = 50
MAX_SHOWN = 20_000  #: characters of all arguments together; exceeded by at most about one text
MAX_DEPTH = 5


def preview(args: dict[str, Any]) -> dict[str, Any]:
    """Return `args` as bounded JSON for people to read. Every omission is marked."""
    remaining_chars = MAX_SHOWN

    def show(value: Any, depth: int) -> Any:
        nonlocal remaining_chars
        if remaining_chars <= 0:
            return "… not shown"
        remaining_chars -= 10
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int) and abs(value) <= 2**53:
            return value
        if isinstance(value, float) and math.isfinite(value):
            return value
        if depth < MAX_DEPTH and isinstance(value, dict):
            entries = {text(str(key)): show(each, depth + 1) for key, each in islice(value.items(), MAX_ITEMS)}
            return entries | ({"…": f"{len(value)} entries"} if len(value) > MAX_ITEMS else {})
        if depth < MAX_DEPTH and isinstance(value, list | tuple):
            items = [show(each, depth + 1) for each in islice(value, MAX_ITEMS)]
            return items + ([f"… {len(value)} entries"] if len(value) > MAX_ITEMS else [])
        return text(value if isinstance(value, str) else repr(value))

    def text(whole: str) -> str:
        nonlocal remaining_chars
        part = shorten(whole)
        remaining_chars -= len(part)
        return part

    plain: dict[str, Any] = show(args, 0)
    return plain


def shorten(text: str) -> str:
    """Shorten a text to its beginning and its end: the important part of a long command may be at either."""
    text = text.encode("utf-8", "replace").decode()
    if len(text) <= MAX_TEXT:
        return text
    half = MAX_TEXT // 2
    return f"{text[:half]} … [{len(text)} characters, the middle is not shown] … {text[-half:]}"
