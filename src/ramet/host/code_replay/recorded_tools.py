"""Stand-ins for the tools of a replayed run: they answer from its record.

Tools that only concern the tree itself do their work, since what they do is compared: they start, message and stop the
replayed runs, or end a task. No other tool runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final, Protocol

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from ramet.core.errors import Bug
from ramet.core.tool_names import SEND_MESSAGE
from ramet.tools.context import current_call, require_current_call
from ramet.tools.dispatch import tool_flag

#: Tools that do their work, and whose own answers are compared.
_WORKING: Final = frozenset({"Agent", "task_success", "task_fail", "task_clarify"})
#: Tools that do their work, and whose answers depend on the moment: the recorded ones are given.
_ACTING: Final = frozenset({SEND_MESSAGE, "TaskStop"})
#: An answer of the tool Agent to a call whose child goes on in the background.
_SOON_S: Final = 0.1


class Answers(Protocol):
    """The recorded answers to the calls of replayed runs, given in the recorded order."""

    async def begin(self, run: str, call: str) -> None:
        """Wait until a call begins in the record."""

    async def answer(self, run: str, call: str, tool: str) -> Mapping[str, Any]:
        """Wait until the answer comes in the record, and return its message."""

    def was_moved(self, run: str, call: str) -> bool:
        """Return whether the child of a call went on in the background after a wait."""


class RecordedTool(BaseTool):
    """A tool with the name, the arguments and the declarations of another one, whose answers are recorded."""

    args_schema: Any
    _answers: Answers = PrivateAttr()
    _original: BaseTool = PrivateAttr()

    def __init__(self, original: BaseTool, answers: Answers) -> None:
        super().__init__(
            name=original.name,
            description=original.description,
            args_schema=original.args_schema,
            metadata=dict(original.metadata or {}),
        )
        self._answers, self._original = answers, original

    def _run(self, **_: Any) -> Any:
        raise Bug(f"the recorded tool {self.name} runs in the event loop")

    async def _arun(self, **_: Any) -> ToolMessage:
        call = require_current_call()
        recorded = self._answers.answer(call.context.run.id, call.call_id, self.name)
        waits = tool_flag(self, "waits")
        message = await (call.context.slot.while_waiting(recorded, key=call.step_id) if waits else recorded)
        return ToolMessage(
            content=message.get("content", ""),
            tool_call_id=call.call_id,
            name=message.get("name") or self.name,
            status=message.get("status", "success"),
        )


def stand_in(tool: BaseTool, answers: Answers) -> BaseTool:
    """Return the stand-in of a tool; a stand-in itself is returned unchanged."""
    if isinstance(tool, RecordedTool) or "_arun" in tool.__dict__:
        return tool
    if tool.name not in _WORKING | _ACTING:
        return RecordedTool(tool, answers)
    copy, work = tool.model_copy(), tool._arun

    async def begin(**values: Any) -> Any:
        call = require_current_call()
        run = call.context.run.id
        await call.context.slot.while_waiting(answers.begin(run, call.call_id), key=call.step_id)
        if values.get("background_after_s") is not None:  # Its time would be another one.
            values["background_after_s"] = _SOON_S if answers.was_moved(run, call.call_id) else None
        done = await work(**values)
        if tool.name not in _ACTING:
            return done
        message = await answers.answer(run, call.call_id, tool.name)
        return message.get("content", "")

    copy.__dict__["_arun"] = begin  # Python finds it before the method of the class.
    return copy


async def wait_in_call(wait: Any) -> Any:
    """Wait without a slot, if a call of a run waits."""
    call = current_call.get(None)
    return await (wait if call is None else call.context.slot.while_waiting(wait, key=call.step_id))


async def wait_for_ever() -> None:
    """Wait until the run is ended."""
    await asyncio.get_running_loop().create_future()
