"""The text of a turn: the replies of a model, and notes between them."""

from __future__ import annotations

import json

from langchain_core.messages import AIMessageChunk

from ramet.core.events import Event, MessageDiscarded, MessageRecorded, ToolStarted
from ramet.core.outcome import Result, value_text

_MAX_ARGS_CHARS = 200  #: characters of a tool call's arguments
BEGINS_AGAIN = "[the reply was cut off; it begins again]"


class TextAssembler:
    """The text of a turn so far. Blank lines separate the replies of the model from each other and from notes."""

    def __init__(self, show_tools: bool) -> None:
        self._show_tools = show_tools
        self._tail = ""  #: the last two characters of the text so far
        self._needs_gap = False  #: whether the next text begins another reply

    def piece(self, item: AIMessageChunk | Event) -> str:
        """Return the text that this item adds; empty for most items."""
        if isinstance(item, AIMessageChunk):
            return self._add(str(item.text))
        if isinstance(item, MessageRecorded):
            self._needs_gap = True
        elif isinstance(item, MessageDiscarded) and self._tail:
            return self._note(BEGINS_AGAIN)
        elif isinstance(item, ToolStarted) and self._show_tools:
            shown = json.dumps(item.args, ensure_ascii=False, default=str)
            return self._note(
                f"[{item.tool} {shown if len(shown) <= _MAX_ARGS_CHARS else shown[:_MAX_ARGS_CHARS] + '…'}]"
            )
        return ""

    def rest(self, result: Result) -> str:
        """Return the text of a result that no reply contains."""
        if isinstance(result.value, str):
            return "" if self._tail else result.value
        return self._note(value_text(result.value))

    def _note(self, text: str) -> str:
        self._needs_gap = True
        added = self._add(text)
        self._needs_gap = True
        return added

    def _add(self, text: str) -> str:
        if not text:
            return ""
        if self._needs_gap and self._tail:
            text = f"{_gap(self._tail)}{text}"
        self._needs_gap, self._tail = False, (self._tail + text)[-2:]
        return text


def _gap(tail: str) -> str:
    return "\n" * (2 - (len(tail) - len(tail.rstrip("\n"))))
