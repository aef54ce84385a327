"""Trip D: the conversations of trip A, each in a sandbox of its own, where a tool counts how often it was called."""

from __future__ import annotations

import sys

from langchain_core.tools import BaseTool, StructuredTool

#: All that the tool says, if every call of it was made once, and those of one run in one process.
NOTED = sorted(
    f"noted {text}, note {number} here"
    for text, number in [
        *(("lead 1", 1), ("lead 2", 2), ("lead 3", 3)),
        *(("a 1", 1), ("a 2", 2), ("b 1", 1), ("c 1", 1), ("deep 1", 1)),
    ]
)


def tools() -> list[BaseTool]:
    """One tool, whose results say how many there were in its process."""
    return [StructuredTool.from_function(func=note, name="note", description="Notes.")]


def note(text: str) -> str:
    """Note something."""
    notes: list[str] = sys.__dict__.setdefault("notes", [])
    notes.append(text)
    return f"noted {text}, note {len(notes)} here"
