"""A model that obeys its prompt at once, so that a measurement shows the costs around it."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool

USAGE = UsageMetadata(input_tokens=10, output_tokens=5, total_tokens=15)
ARGUMENTS = {"a": 1, "b": 2}
_numbers = itertools.count()


class Obedient(BaseChatModel):
    """A model that reads the newest human message and obeys one of these; it answers all others with "done".

    tools N NAME    N replies with one call of the tool NAME each
    batch N NAME    one reply with N calls
    spawn W D       W sub-agents of the type `worker` below each agent, D levels deep
    background      starts a `sleeper` in the background
    hang            never answers
    """

    @property
    def _llm_type(self) -> str:
        return "obedient"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Return the model itself: it knows its tools."""
        return self

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        answered = 0
        prompt = ""
        for message in reversed(messages):
            if isinstance(message, ToolMessage):
                answered += 1
            elif isinstance(message, HumanMessage):
                prompt = message.text
                break
        if prompt == "hang":
            await asyncio.Event().wait()
        reply = AIMessage("", tool_calls=_calls(prompt.split(), answered), usage_metadata=USAGE)
        if not reply.tool_calls:
            reply.content = "done"
        return ChatResult(generations=[ChatGeneration(message=reply)])


def _calls(words: list[str], answered: int) -> list[ToolCall]:
    match words:
        case ["tools", count, name] if answered < int(count):
            return [_call(name, ARGUMENTS)]
        case ["batch", count, name] if not answered:
            return [_call(name, ARGUMENTS) for _ in range(int(count))]
        case ["spawn", width, depth] if not answered:
            below = f"spawn {width} {int(depth) - 1}" if int(depth) > 1 else "say"
            return [_call("Agent", {"prompt": below, "subagent_type": "worker"}) for _ in range(int(width))]
        case ["background"] if not answered:
            return [_call("Agent", {"prompt": "x", "subagent_type": "sleeper", "run_in_background": True})]
        case _:
            return []


def _call(name: str, args: dict[str, Any]) -> ToolCall:
    return ToolCall(name=name, args=dict(args), id=f"call-{next(_numbers)}", type="tool_call")


async def _add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def _add_sync(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


#: One coroutine after another; many at once; each in a thread of its own, many at once.
add = StructuredTool.from_function(coroutine=_add, name="add")
add_safe = StructuredTool.from_function(coroutine=_add, name="add_safe", metadata={"concurrency_safe": True})
add_sync = StructuredTool.from_function(func=_add_sync, name="add_sync", metadata={"concurrency_safe": True})
