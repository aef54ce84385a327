"""Agent types that a prompt mentions: `@reviewer look`. Each is spawned in that turn, whatever the model says.

A mention guarantees the type, and not the prompt: the model may write a better one. Only a reply that would end the
turn, while a mentioned type was not requested, gets the missing calls. They pass the same hooks, rules and limits as
those of the model.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall

from ramet.agent.tool_entry import SPAWNERS
from ramet.core.errors import InvalidValue, Unknown
from ramet.tools.agents.task_result import CONCLUSIONS

#: Key of a prompt's `additional_kwargs`: the types that it mentions.
MARK = "mentioned_agents"
#: The form that never means anything else: `@agent-reviewer`.
EXPLICIT = "agent-"
MAX_MENTIONS = 8
_MENTION = re.compile(r"(?<![^\s(])@([A-Za-z0-9][A-Za-z0-9._-]{0,70})")


def find_mentions(prompt: str, types: Collection[str]) -> tuple[str, ...]:
    """Return the mentioned types, each once, in order. Another word with `@` is text.

    Raises Unknown for `@agent-NAME` with another name, InvalidValue for more than `MAX_MENTIONS` types.
    """
    found: dict[str, None] = {}
    for match in _MENTION.finditer(prompt):
        word = match[1]
        candidates = (word, word.rstrip("._-"), word.removeprefix(EXPLICIT), word.removeprefix(EXPLICIT).rstrip("._-"))
        name = next((each for each in candidates if each in types), None)
        if name is not None:
            found[name] = None
        elif word.startswith(EXPLICIT):
            raise Unknown("agent type", candidates[-1], tuple(types))
    if len(found) > MAX_MENTIONS:
        raise InvalidValue("prompt", f"mentions of {len(found)} agent types", f"at most {MAX_MENTIONS}")
    return tuple(found)


def marked_prompt(
    content: str | list[str | dict[str, Any]], mentions: Sequence[str], history: Sequence[BaseMessage]
) -> HumanMessage:
    """Return the message of a prompt with its mentions; one without any ends the mentions of the prompts before."""
    newest = next((each for each in reversed(history) if MARK in each.additional_kwargs), None)
    if not mentions and (newest is None or not newest.additional_kwargs[MARK]):
        return HumanMessage(content=content)
    return HumanMessage(content=content, additional_kwargs={MARK: list(mentions)})


def with_mentioned_calls(reply: AIMessage, messages: Sequence[BaseMessage], step: str) -> AIMessage:
    """Return a reply that would end its turn with calls for the mentioned types that were not requested yet."""
    if any(call["name"] not in CONCLUSIONS for call in reply.tool_calls) or reply.invalid_tool_calls:
        return reply
    requested: set[object] = set()
    for message in reversed(messages):
        if isinstance(message, AIMessage):
            requested |= {call["args"].get("subagent_type") for call in message.tool_calls if call["name"] in SPAWNERS}
        elif MARK in message.additional_kwargs:
            missing = [each for each in message.additional_kwargs[MARK] if each not in requested]
            calls = [
                _call(each, str.__str__(message.text), f"mention-{step}-{at}") for at, each in enumerate(missing, 1)
            ]
            return reply.model_copy(update={"tool_calls": [*calls, *reply.tool_calls]}) if calls else reply
    return reply


def _call(name: str, prompt: str, call_id: str) -> ToolCall:
    arguments = {"subagent_type": name, "prompt": prompt, "run_in_background": False}
    return ToolCall(name="Agent", args=arguments, id=call_id, type="tool_call")
