"""Conversations in sandboxes that outlive their kernel: those of trip A, a long one, and one that crashes.

The tool counts its calls in its process, so that results show whether it is still that process.
"""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
import sys
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.tools import BaseTool, StructuredTool
from pydantic import Field

from ramet import Agent, AgentRuntime
from tests.support.plain_models import AnsweringModel

#: All that the tool says on trip A, if every call of it was made once, and those of one run in one process.
NOTED = sorted(
    f"noted {text}, note {number} here"
    for text, number in [
        *(("lead 1", 1), ("lead 2", 2), ("lead 3", 3)),
        *(("a 1", 1), ("a 2", 2), ("b 1", 1), ("c 1", 1), ("deep 1", 1)),
    ]
)
#: By brief: what the model calls, one reply after the other; then it is done.
CALLS: dict[str, list[list[str]]] = {
    "talk": [["long 1"], ["long 2"], ["long 3"], ["forbidden", "asked", "plain"], ["long 4"]],
    "crash": [["first"], ["crash", "second"]],
}
#: How the tool's results on the first of them begin, one of which a hook does not let through.
CONVERSED = ["noted long 1, note 1 here", "noted long 2, note 2 here", "noted long 3, note 3 here"]
CONVERSED += ["Denied: no", "noted asked, note 4 here", "noted plain, note 5 here", "noted long 4, note 6 here"]
_LONG = " word" * 300


def tools() -> list[BaseTool]:
    """Return one tool whose results tell how often it was called in its process."""
    return [StructuredTool.from_function(func=note, name="note", description="Notes.")]


def note(text: str) -> str:
    """Note something."""
    notes: list[str] = sys.__dict__.setdefault("notes", [])
    notes.append(text)
    if text == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    return f"noted {text}, note {len(notes)} here{_LONG if text.startswith('long') else ''}"


class Narrow(AnsweringModel):
    """Model with a small window, which reads its progress from its newest reply. It lets the tool crash once."""

    model_name: str = "narrow"
    folder: str = ""
    profile: Any = Field(default_factory=lambda: {"max_input_tokens": 2_000})

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        """Return the next calls, a summary if no brief is in the messages, or the last reply."""
        brief = next((each.text for each in messages if isinstance(each, HumanMessage) and each.text in CALLS), None)
        size = sum(len(each.text) for each in messages) // 3
        usage = UsageMetadata(input_tokens=size, output_tokens=2, total_tokens=size + 2)
        if brief is None:
            return AIMessage("A summary.", usage_metadata=usage)
        replies = [each for each in messages if isinstance(each, AIMessage)]
        number = int(replies[-1].text.rpartition(" ")[2]) + 1 if replies else 1
        with (pathlib.Path(self.folder) / "asked").open("a") as file:
            file.write(f"{brief}:{number}\n")
        if number > len(CALLS[brief]):
            return AIMessage(f"done after {number}", usage_metadata=usage)
        texts = [each for each in CALLS[brief][number - 1] if each != "crash" or self._may_crash()]
        calls = [tool_call(name="note", args={"text": each}, id=f"{number}-{each.replace(' ', '-')}") for each in texts]
        return AIMessage(f"step {number}", tool_calls=calls, usage_metadata=usage)

    def _may_crash(self) -> bool:
        try:
            (pathlib.Path(self.folder) / "crashed").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


def talker(folder: pathlib.Path) -> Agent:
    """Return an agent whose tool calls a hook checks."""
    return Agent(name="talker", model=Narrow(folder=str(folder)), hooks={"PreToolUse": [_look_at]})


def _look_at(payload: dict[str, Any]) -> dict[str, Any] | str | None:
    text = payload["tool_input"]["text"]
    denied = {"permissionDecision": "deny", "permissionDecisionReason": "no"}
    return {"hookSpecificOutput": denied} if text == "forbidden" else "ask" if text == "asked" else None


async def says_yes(runtime: AgentRuntime) -> None:
    """Approve every pending question, as a person who always agrees."""
    while True:
        for opened in list(runtime.trees.values()):
            for each in opened.inbox.pending:
                opened.inbox.answer(each.id, True)
        await asyncio.sleep(0.005)
