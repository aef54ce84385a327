"""Model and tool of trip A: the model follows a plan for each brief, and each tool call leaves a line in a file."""

from __future__ import annotations

import json
import pathlib
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call
from langchain_core.tools import BaseTool, StructuredTool

from ramet.tools.context import require_current_call
from tests.support.plain_models import AnsweringModel


def child(prompt: str, **more: Any) -> dict[str, Any]:
    """Return a call of the Agent tool."""
    return {"name": "Agent", "args": {"prompt": prompt, "subagent_type": "general-purpose", **more}}


def note(text: str) -> dict[str, Any]:
    """Return a call of the counted tool."""
    return {"name": "note", "args": {"text": text}}


def mail(text: str) -> dict[str, Any]:
    """Return a call of the tool that sends a message to the reader."""
    return {"name": "SendMessage", "args": {"to": "reader", "message": text}}


#: By brief: what the model says, one reply after the other.
PLANS: dict[str, list[Any]] = {
    "lead": [
        [note("lead 1"), child("dig a"), child("dig b")],
        [note("lead 2")],
        [child("dig c", run_in_background=True), note("lead 3")],
        "the lead is done",
        "the lead has heard of c",
    ],
    "dig a": [[note("a 1"), note("a 2")], "a is dug"],
    "dig b": [[child("dig deep")], [note("b 1")], "b is dug"],
    "dig deep": [[note("deep 1")], "deep is dug"],
    "dig c": [[note("c 1")], "c is dug"],
    "write letters": [[child("read letters", name="reader")], [mail("first")], [mail("second")], "they are sent"],
    "read letters": ["they are read"],
}
#: All that the tool is to be told by the lead and those below.
NOTES = sorted(
    call["args"]["text"]
    for plan in PLANS.values()
    for step in plan
    if isinstance(step, list)
    for call in step
    if call["name"] == "note"
)


class Planned(AnsweringModel):
    """Model that answers with the next step of its brief's plan, also in a new process after a kill."""

    model_name: str = "planned"
    folder: str = ""

    def answer(self, messages: list[BaseMessage]) -> AIMessage:
        """Return the next step of the plan, and leave a line about the question."""
        at = next(i for i, each in enumerate(messages) if isinstance(each, HumanMessage) and each.text in PLANS)
        reply_count = sum(isinstance(each, AIMessage) for each in messages[at:])
        brief = messages[at].text
        with (pathlib.Path(self.folder) / "asked").open("a") as file:
            file.write(f"{brief}:{reply_count}\n")
        return _reply(brief, reply_count)


def _reply(brief: str, number: int) -> AIMessage:
    steps = PLANS[brief]
    step = steps[min(number, len(steps) - 1)]
    usage = UsageMetadata(input_tokens=3, output_tokens=2, total_tokens=5)
    if isinstance(step, str):
        return AIMessage(step, usage_metadata=usage)
    calls = [
        tool_call(name=each["name"], args=each["args"], id=f"{brief}/{number}/{n}".replace(" ", "-"))
        for n, each in enumerate(step)
    ]
    return AIMessage("", tool_calls=calls, usage_metadata=usage)


def count(folder: pathlib.Path, effect: str) -> None:
    """Leave a line about an effect, with the id of its step."""
    with (folder / "effects").open("a") as file:
        file.write(json.dumps([require_current_call().step_id, effect]) + "\n")


def tools(folder: pathlib.Path) -> list[BaseTool]:
    """Return one tool that counts each call and may be repeated."""

    async def note(text: str) -> str:
        count(folder, text)
        return f"noted {text}"

    return [
        StructuredTool.from_function(
            coroutine=note, name="note", description="Notes.", metadata={"concurrency_safe": True, "repeatable": True}
        )
    ]
