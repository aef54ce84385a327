"""LangChain's ChatOpenAI and ChatAnthropic talk with an agent in each of their modes.

Unsupported modes are refused by name.
"""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import anthropic
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from tests.support.parrot_agents import ParrotType
from tests.support.serving import EchoServer, serving

pytestmark = pytest.mark.leaves(
    "LangChain keeps the HTTP clients of its models, with their connections, for later ones"
)
REFUSED = (openai.BadRequestError, anthropic.BadRequestError)
KINDS: dict[str, Callable[[str, str], BaseChatModel]] = {
    "openai": lambda url, key: ChatOpenAI(base_url=f"{url}/v1", api_key=key, model="any", max_retries=0),  # type: ignore[arg-type]  # a str is taken
    "anthropic": lambda url, key: ChatAnthropic(base_url=url, api_key=key, model="any", max_retries=0),  # type: ignore[arg-type,call-arg]  # likewise, and by this name
}


class City(BaseModel):
    """A city with a name."""

    name: str


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return city


@pytest.fixture
async def echo_server(folder: pathlib.Path) -> AsyncIterator[EchoServer]:
    async with serving(folder, listen=("127.0.0.1", 0), types={"parrot": ParrotType()}) as server:
        yield server


@pytest.fixture(params=KINDS)
async def model(echo_server: EchoServer, request: pytest.FixtureRequest) -> BaseChatModel:
    nonce = (await echo_server.agent(agent_type="parrot"))[1]
    return KINDS[request.param](echo_server.server.listen_address, nonce)


async def test_every_text_mode_of_langchain_works(model: BaseChatModel) -> None:
    """`invoke`, `stream`, `batch` and their async variants each add a turn to one conversation, with its usage."""
    reply = await asyncio.to_thread(model.invoke, "a b")
    assert (reply.text, reply.usage_metadata["total_tokens"]) == ("1: a b ", 5)  # type: ignore[index]
    pieces = await asyncio.to_thread(lambda: list(model.stream("c d")))
    assert len(pieces) > 3
    assert "".join(each.text for each in pieces) == "2: c d "
    assert (await model.ainvoke([HumanMessage("e"), AIMessage("f"), HumanMessage("g")])).text == "3: g "
    chunks = [each async for each in model.astream("h")]
    assert "".join(each.text for each in chunks) == "4: h "
    usages = [each.usage_metadata for each in chunks if each.usage_metadata]
    assert sum(each["output_tokens"] for each in usages) == 2
    batch = await asyncio.to_thread(model.batch, ["i", "i"])
    assert sorted(each.text for each in batch) == ["5: i ", "6: i "]
    assert sorted(each.text for each in await model.abatch(["j", "j"])) == ["7: j ", "8: j "]


REFUSALS: dict[str, tuple[Callable[[BaseChatModel], Any], str]] = {
    "bind_tools": (lambda model: model.bind_tools([weather]), "tools"),
    "structured": (
        lambda model: model.with_structured_output(City),
        "response_format|tools|tool_choice|output_config",
    ),
    "by tools": (lambda model: model.with_structured_output(City, method="function_calling"), "tool"),
    "by schema": (
        lambda model: model.with_structured_output(City, method="json_schema"),
        "response_format|output_config|output_format",
    ),
    "stop": (lambda model: model.bind(stop=["x"]), "stop"),
    "temperature": (lambda model: model.bind(temperature=0.5), "temperature"),
}


async def test_unsupported_modes_of_langchain_are_refused_by_name(model: BaseChatModel) -> None:
    """Tools, structured answers and model settings are refused before the agent receives anything."""
    for make, message in REFUSALS.values():
        asks = make(model)
        with pytest.raises(REFUSED, match=message):
            await asks.ainvoke("a")
        with pytest.raises(REFUSED, match=message):
            [each async for each in asks.astream("a")]
    with pytest.raises(REFUSED, match="tools"):
        await asyncio.to_thread(model.bind_tools([weather]).invoke, "a")
    assert (await model.ainvoke("b")).text == "1: b "


async def test_instructions_and_images_are_refused_by_name(model: BaseChatModel) -> None:
    """The agent has its own instructions, and reads text only."""
    with pytest.raises(REFUSED, match=r"system|messages\[0\]\.role"):
        await model.ainvoke([SystemMessage("Be brief."), HumanMessage("a")])
    image = {"type": "image", "source_type": "url", "url": "https://example.org/a.png", "mime_type": "image/png"}
    with pytest.raises(REFUSED, match=r"messages\[0\]\.content\[1\]\.type"):
        await model.ainvoke([HumanMessage([{"type": "text", "text": "a"}, image])])
