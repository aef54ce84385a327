"""Calls to servers that the end of a kernel or sandbox interrupted, and that begin again in the next process of a turn.

A call begins again if its definition was repeatable when it began, which its `ToolStarted` says, if its server's entry
still allows that, and if no answer is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from langchain_core.messages import AIMessage, BaseMessage, ToolCall

from ramet.agent.context import calls_of
from ramet.agent.loop import open_calls
from ramet.core.mcp.server_entry import McpServer
from ramet.core.replay.run_replay import RunReplay
from ramet.models.messages import decode
from ramet.spawn.tool_calls import InterruptedCall


def find_interrupted(replay: RunReplay) -> dict[str, InterruptedCall]:
    """Return the repeatable calls that were interrupted in a turn, by their ids."""
    tools = {id: each.tool for id, each in replay.started_calls.items() if each.repeatable}
    newest = next((each for each in reversed(replay.conversation) if each.kind == "ai"), None)
    if not tools or newest is None or not replay.is_in_turn:
        return {}
    reply = decode(newest.data)
    calls = calls_of(reply) if isinstance(reply, AIMessage) else ()
    known = [(each["id"] or "", each["args"]) for each in calls]
    return {id: InterruptedCall(tools[id], args, replay.reply_step) for id, args in known if id in tools}


def calls_to_repeat(
    history: Sequence[BaseMessage], interrupted: Mapping[str, InterruptedCall], servers: Iterable[McpServer]
) -> list[ToolCall]:
    """Return the unanswered calls at the end of a conversation that begin again, with their original arguments."""
    if not interrupted:
        return []
    servers = tuple(servers)
    calls = [each for each in open_calls(history) or () if each["id"] in interrupted and not each.get("error")]
    repeated: list[ToolCall] = []
    for call in calls:
        known = interrupted[call["id"] or ""]
        if any(each.may_repeat(known.tool, is_annotated=True) for each in servers):
            call["args"] = known.args  # A hook may have changed them when the call first began.
            repeated.append(call)
    return repeated
