"""An agent type that calls any tool by its name, and says its system prompt, as a team's key can ask a model to."""

from __future__ import annotations

import json

from langchain_core.messages import BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.models.scripted.dialogue import Call, Step
from ramet.models.scripted.model import ScriptedModel
from ramet.services.agent_types.llm.type import LlmType

ENTRY_POINTS = """\
told = tests.support.scripted_tool_types:ToldType
"""


def _answer(messages: list[BaseMessage]) -> Step:
    """`call NAME {JSON}` is a call of a tool, `system` asks for the system prompt, a tool's result is said again."""
    if isinstance(messages[-1], ToolMessage):
        return f"RESULT {messages[-1].text}"
    asked = [str(each.text) for each in messages if isinstance(each, HumanMessage)][-1]
    if asked.startswith("call "):
        _, name, arguments = asked.split(" ", 2)
        return Call(name, json.loads(arguments))
    return "SYSTEM " + "\n".join(str(each.text) for each in messages if isinstance(each, SystemMessage))


class ToldType(LlmType):
    """A model that calls what it is told to."""

    name = "told"

    def __init__(self) -> None:
        super().__init__({"told": ScriptedModel(_answer, keep_requests=False)}, default="told")
