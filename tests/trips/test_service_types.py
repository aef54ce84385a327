"""Agent types of the services: whole conversations over a transport format, in the host and in real sandboxes."""

from __future__ import annotations

import json
import pathlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest

from ramet import AgentRuntime, Policy, ScriptedModel
from ramet.models.dialogue import Call
from ramet.services.contract import AgentType, Opening, Served
from ramet.services.formats.shipped import format_of
from ramet.services.types.llm import LlmInfo, LlmType

Backend = Literal["bwrap", "local"]
both = pytest.mark.parametrize("backend", ["bwrap", "local"])
everywhere = pytest.mark.parametrize("backend", [None, "bwrap", "local"])


def asked(text: str) -> bytes:
    """A body of either format."""
    return json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()


def text_of(answer: bytes) -> str:
    """What a folded answer in OpenAI's format says."""
    return str(json.loads(answer)["choices"][0]["message"]["content"])


async def say(agent: Served, text: str) -> str:
    """One turn, whole; the answer's text."""
    chunks = [chunk async for chunk in agent.turn(asked(text), "openai")]
    return text_of(format_of("openai").fold(chunks))


def opening(runtime: AgentRuntime, folder: pathlib.Path, info: Any, **more: Any) -> Opening:
    """As the service makes one."""
    folder.mkdir(exist_ok=True)
    return Opening(id="a-1", name="ada", path="team/ada", info=info, runtime=runtime, folder=folder, **more)


@asynccontextmanager
async def opened(kind: AgentType, start: Opening) -> AsyncIterator[Served]:
    """An agent, checked and opened; closed in the end."""
    await kind.check(start)
    agent = await kind.open(start)
    try:
        yield agent
    finally:
        await agent.close("the test is over")
        assert agent.ended.result() is None


def llm(script: list[Any] | dict[str, list[Any]]) -> LlmType:
    """The type, with a model "scripted" that plays this."""
    return LlmType({"scripted": ScriptedModel(script)}, default="scripted")


def policy_for(backend: Backend | None, **fields: Any) -> Policy | None:
    """The policy of an agent that works in this kind of sandbox, or in the host."""
    return Policy(**fields) if backend is not None else None


@everywhere
async def test_the_second_turn_knows_the_first(tmp_path: pathlib.Path, backend: Backend | None) -> None:
    """One agent, one conversation, one folder: what was said and what was written is there in the next turn."""
    script = [
        Call("Bash", {"command": "echo first >> notes.txt"}),
        "Noted.",
        Call("Bash", {"command": "cat notes.txt; echo second >> notes.txt; wc -l < notes.txt"}),
        "Two.",
    ]
    kind = llm(script)
    start_with = LlmInfo(tools=["Bash"], system_prompt="You keep notes.")
    async with AgentRuntime(tmp_path, backend=backend) as runtime:
        start = opening(runtime, tmp_path / "ada", start_with, policy=policy_for(backend))
        async with opened(kind, start) as agent:
            assert await say(agent, "Note this.") == "Noted."
            assert await say(agent, "How many?") == "Two."
            history = await agent.history()
            assert agent.isolation == "none" if backend is None else agent.isolation.startswith("L")
            spent = agent.spent()
    assert [each["role"] for each in history] == ["user", "assistant", "tool", "assistant"] * 2
    assert [each["content"] for each in history if each["role"] == "user"] == ["Note this.", "How many?"]
    assert history[6]["content"].startswith("first\n2")
    assert (spent["model_calls"], spent["tool_calls"]) == (4, 2)
    assert spent["tokens"] > 0
