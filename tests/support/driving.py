"""A minimal loop that drives a model through real tools, in tests whose subject is not the loop."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolCall, ToolMessage
from langchain_core.tools import BaseTool, ToolException

from ramet.tools.workspace import workspace_tools
from tests.support.context import calling, make_context

READERS = ("Read", "Glob", "Grep")
MOST_TURNS = 30


class FinishedConversation(NamedTuple):
    """A conversation that was driven to its end, with the conversations of its children."""

    text: str
    messages: list[BaseMessage]
    children: list[FinishedConversation]

    @property
    def calls(self) -> list[ToolCall]:
        """Return every call that the model made, in order."""
        return [call for message in self.messages if isinstance(message, AIMessage) for call in message.tool_calls]


async def run_conversation(
    model: BaseChatModel,
    prompt: str,
    folder: pathlib.Path,
    *,
    tools: Sequence[str] = (*READERS, "Agent"),
    refusals: Mapping[str, str] | None = None,
) -> FinishedConversation:
    """Ask the model until it answers. Tools named in `refusals` answer with that error instead of running."""
    context = make_context(folder)
    real: dict[str, BaseTool] = {tool.name: tool for tool in workspace_tools()}
    bound = model.bind_tools([{"name": name} for name in tools]) if tools else model
    messages: list[BaseMessage] = [SystemMessage("You are an agent."), HumanMessage(prompt)]
    children: list[FinishedConversation] = []

    async def run(call: ToolCall) -> ToolMessage:
        name, given = call["name"], call["id"] or ""
        assert name in tools, f"{name} was not bound"
        if name in (refusals or {}):
            return ToolMessage((refusals or {})[name], tool_call_id=given, status="error")
        if name == "Agent":
            child = await run_conversation(model, call["args"]["prompt"], folder, tools=READERS, refusals=refusals)
            children.append(child)
            return ToolMessage(child.text, tool_call_id=given)
        try:
            with calling(context, given):
                return ToolMessage(str(await real[name].ainvoke(call["args"])), tool_call_id=given)
        except ToolException as error:
            return ToolMessage(str(error), tool_call_id=given, status="error")

    for _ in range(MOST_TURNS):
        reply = await bound.ainvoke(messages)
        assert isinstance(reply, AIMessage)
        messages.append(reply)
        if not reply.tool_calls:
            return FinishedConversation(reply.text, messages, children)
        messages += [await run(call) for call in reply.tool_calls]
    raise AssertionError(f"no answer after {MOST_TURNS} turns")
