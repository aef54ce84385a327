"""The loopback server itself, which the tests of budgets need."""

from __future__ import annotations

import asyncio

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from ramet.models.call import complete
from tests.support.providers import Call, provider


@pytest.mark.slow
async def test_a_thousand_concurrent_requests_are_counted() -> None:
    """Each of them is open at the same time, and each counts once."""
    async with provider(lambda messages: "ok") as server:
        server.hold = asyncio.Event()
        models = [server.openai(max_retries=0), server.anthropic(max_retries=0)]
        asking = [asyncio.ensure_future(complete(models[n % 2], [HumanMessage(str(n))])) for n in range(1_000)]
        await server.arrived(1_000)

        assert server.count == 1_000
        assert not any(task.done() for task in asking)

        server.hold.set()
        assert {str(reply.text) for reply in await asyncio.gather(*asking)} == {"ok"}
        assert server.count == 1_000


async def test_a_script_sees_the_conversation_in_both_formats() -> None:
    """System prompt, calls and their results arrive as they were sent."""
    history: list[BaseMessage] = [
        SystemMessage("You search."),
        HumanMessage("find it"),
        AIMessage("", tool_calls=[{"name": "grep", "args": {"pattern": "x"}, "id": "call_1"}]),
        ToolMessage("hit", tool_call_id="call_1"),
    ]
    conversations: list[list[tuple[str, str]]] = []

    def step(messages: list[BaseMessage]) -> str:
        conversations.append([(message.type, str(message.content)) for message in messages])
        return "done"

    async with provider(step) as server:
        await complete(server.anthropic(), history)
        await complete(server.openai(), history)

    assert conversations == [[("system", "You search."), ("human", "find it"), ("ai", ""), ("tool", "hit")]] * 2


async def test_dialogues_by_pattern_work_over_http() -> None:
    """Parents and children can share one server."""
    async with provider({"You lead.": [Call("Agent", {"prompt": "x"}), "answer"], "": ["found"]}) as server:
        model = server.anthropic()
        parent: list[BaseMessage] = [SystemMessage("You lead."), HumanMessage("why?")]
        first = await complete(model, parent)
        reply = await complete(model, [HumanMessage("search")])
        result = ToolMessage(str(reply.text), tool_call_id=first.tool_calls[0]["id"] or "")
        last = await complete(model, [*parent, first, result])

    assert (str(reply.text), str(last.text)) == ("found", "answer")
