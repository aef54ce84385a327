"""An agent type that calls any tool by its name and shows its system prompt: a team's key can ask a model for both."""

from __future__ import annotations

import json

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.models.scripted.dialogue import Call, Step
from ramet.models.scripted.model import ScriptedModel
from ramet.services.agent_types.llm.type import LlmType

ENTRY_POINTS = """\
told = tests.support.scripted_tool_types:ScriptedToolType
"""


def _answer(messages: list[BaseMessage]) -> Step:
    """Call a tool for `call NAME {JSON}`, repeat the result of a tool, and answer `system` with the system prompt."""
    if isinstance(messages[-1], ToolMessage):
        return f"RESULT {messages[-1].text}"
    asked = [str(each.text) for each in messages if isinstance(each, HumanMessage)][-1]
    if asked.startswith("call "):
        _, name, arguments = asked.split(" ", 2)
        return Call(name, json.loads(arguments))
    return "SYSTEM " + "\n".join(str(each.text) for each in messages if isinstance(each, SystemMessage))


class ScriptedToolType(LlmType):
    """A model that makes the calls that a prompt names."""

    name = "told"

    def __init__(self) -> None:
        super().__init__({"told": ScriptedModel(_answer, keep_requests=False)}, default="told")
