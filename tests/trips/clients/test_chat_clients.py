"""The real clients of OpenAI and Anthropic, unchanged, talk with an agent: the agent's nonce is their API key."""

from __future__ import annotations

import asyncio
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.support.parrot_agents import ParrotType, user_message
from tests.support.serving import EchoServer, serving
from tests.support.waiting import eventually


@pytest.fixture
def parrots() -> ParrotType:
    return ParrotType()


@pytest.fixture
async def echo_server(folder: pathlib.Path, parrots: ParrotType) -> AsyncIterator[EchoServer]:
    async with serving(folder, listen=("127.0.0.1", 0), types={"parrot": parrots}) as server:
        yield server


@pytest.fixture
async def nonce(echo_server: EchoServer) -> str:
    return (await echo_server.agent(agent_type="parrot"))[1]


@pytest.fixture
async def as_openai(echo_server: EchoServer, nonce: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{echo_server.server.listen_address}/v1", api_key=nonce, max_retries=0
    ) as client:
        yield client


@pytest.fixture
async def as_anthropic(echo_server: EchoServer, nonce: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(
        base_url=echo_server.server.listen_address, api_key=nonce, max_retries=0
    ) as client:
        yield client


async def read_openai(client: openai.AsyncOpenAI, text: str, pieces: list[str]) -> None:
    """Ask for a stream, and add each piece to `pieces`."""
    stream = await client.chat.completions.create(model="any", messages=[user_message(text)], stream=True)
    async for chunk in stream:
        pieces.append(chunk.choices[0].delta.content or "")


async def test_openai_streams_two_turns(as_openai: openai.AsyncOpenAI, parrots: ParrotType) -> None:
    """Each turn comes in pieces, and the client's history is the conversation."""
    history: list[Any] = []
    for number in (1, 2):
        history.append(user_message(f"hello {number}"))
        pieces, usage = [], None
        stream = await as_openai.chat.completions.create(model="any", messages=history, stream=True)
        async for chunk in stream:
            pieces.append(chunk.choices[0].delta.content or "")
            usage = chunk.usage or usage
        assert "".join(pieces) == f"{number}: hello {number} "
        assert len(pieces) > 3
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (2, 3)
        history.append({"role": "assistant", "content": "".join(pieces)})

    assert [format for _, format in parrots.opened[0].received_bodies] == ["openai", "openai"]


async def test_anthropic_streams_two_turns(as_anthropic: anthropic.AsyncAnthropic, parrots: ParrotType) -> None:
    """Each turn of the same agent type comes in pieces in the other format."""
    history: list[Any] = []
    for number in (1, 2):
        history.append(user_message(f"hello {number}"))
        async with as_anthropic.messages.stream(model="any", max_tokens=100, messages=history) as stream:
            pieces = [text async for text in stream.text_stream]
            reply = await stream.get_final_message()
        assert "".join(pieces) == f"{number}: hello {number} "
        assert (reply.stop_reason, reply.usage.output_tokens) == ("end_turn", 3)
        history.append({"role": "assistant", "content": "".join(pieces)})

    assert [format for _, format in parrots.opened[0].received_bodies] == ["anthropic", "anthropic"]


async def test_both_clients_get_a_whole_answer(
    as_openai: openai.AsyncOpenAI, as_anthropic: anthropic.AsyncAnthropic
) -> None:
    """A request without a stream gets one object; both clients use one agent, one after the other."""
    completion = await as_openai.chat.completions.create(model="any", messages=[user_message("a b")])
    message = await as_anthropic.messages.create(model="any", max_tokens=9, messages=[user_message("c")])

    assert completion.choices[0].message.content == "1: a b "
    assert completion.usage is not None
    assert completion.usage.total_tokens == 5
    assert message.content[0].text == "2: c "  # type: ignore[union-attr]


async def test_both_clients_list_the_agent_as_a_model(
    as_openai: openai.AsyncOpenAI, as_anthropic: anthropic.AsyncAnthropic
) -> None:
    """Both clients find the agent in the list under the same id."""
    listed_ids = [each.id async for each in as_openai.models.list()]
    others = [each async for each in as_anthropic.models.list()]

    assert listed_ids == [each.id for each in others]
    assert others[0].display_name.endswith("/bob")


async def test_failures_raise_the_clients_own_errors(echo_server: EchoServer, as_openai: openai.AsyncOpenAI) -> None:
    """A wrong key, an invalid body and a failed answer give a status before the answer begins, and an event later."""
    wrong = openai.AsyncOpenAI(base_url=f"{echo_server.server.listen_address}/v1", api_key="agent_no", max_retries=0)
    async with (
        wrong,
        anthropic.AsyncAnthropic(base_url=echo_server.server.listen_address, api_key="x", max_retries=0) as other,
    ):
        with pytest.raises(openai.AuthenticationError, match="is not valid for an agent"):
            await wrong.chat.completions.create(model="any", messages=[user_message("a")])
        with pytest.raises(openai.AuthenticationError):
            await wrong.models.list()
        with pytest.raises(anthropic.AuthenticationError):
            await other.messages.create(model="any", max_tokens=9, messages=[user_message("a")])
    with pytest.raises(openai.BadRequestError, match="messages"):
        await as_openai.chat.completions.create(model="any", messages=[])
    with pytest.raises(openai.APIStatusError, match="told to") as failure:
        await as_openai.chat.completions.create(model="any", messages=[user_message("a fail")])
    assert failure.value.status_code == 502
    pieces: list[str] = []
    with pytest.raises(openai.APIError, match="told to"):
        await read_openai(as_openai, "a fail", pieces)
    assert "a " in pieces


async def test_a_failing_anthropic_stream_raises(as_anthropic: anthropic.AsyncAnthropic) -> None:
    """The client raises APIError for the `error` event."""

    async def read() -> None:
        async with as_anthropic.messages.stream(model="any", max_tokens=9, messages=[user_message("a fail")]) as stream:
            async for _ in stream:
                pass

    with pytest.raises(anthropic.APIError, match="told to"):
        await read()


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
async def test_a_client_that_leaves_interrupts_its_turn(
    as_openai: openai.AsyncOpenAI, parrots: ParrotType, is_streamed: bool
) -> None:
    """The turn of a client that disconnects is interrupted, so that the agent is free for the next."""
    pieces: list[str] = []
    if is_streamed:
        asking: asyncio.Task[Any] = asyncio.create_task(read_openai(as_openai, "a wait", pieces))
        await eventually(lambda: "a " in pieces)
    else:
        asking = asyncio.create_task(as_openai.chat.completions.create(model="any", messages=[user_message("a wait")]))
        await eventually(lambda: parrots.opened[0].received_bodies)
    asking.cancel()

    await eventually(lambda: parrots.opened[0].interrupts)
    after = await as_openai.chat.completions.create(model="any", messages=[user_message("b")])
    assert after.choices[0].message.content == "2: b "


@pytest.mark.parametrize("is_streamed", [True, False], ids=["streamed", "whole"])
async def test_an_unsupported_parameter_is_refused_by_name(
    as_openai: openai.AsyncOpenAI, as_anthropic: anthropic.AsyncAnthropic, parrots: ParrotType, is_streamed: bool
) -> None:
    """The refusal is the provider's own error, before the agent receives anything; so for instructions and images."""
    with pytest.raises(openai.BadRequestError, match="temperature") as refusal:
        await as_openai.chat.completions.create(
            model="any", messages=[user_message("a")], temperature=0.1, stream=is_streamed
        )
    assert (refusal.value.param, refusal.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(anthropic.BadRequestError, match="system") as other:
        await as_anthropic.messages.create(
            model="any", max_tokens=9, messages=[user_message("a")], system="Be brief.", stream=is_streamed
        )
    assert other.value.body["error"]["type"] == "invalid_request_error"  # type: ignore[index]
    image: Any = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
        await as_openai.chat.completions.create(model="any", messages=[image])
    with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.role"):
        await as_openai.chat.completions.create(
            model="any", messages=[{"role": "system", "content": "x"}, user_message("a")]
        )
    assert parrots.opened[0].received_bodies == []


async def test_unknown_paths_are_refused_in_the_providers_form(
    echo_server: EchoServer, as_openai: openai.AsyncOpenAI, as_anthropic: anthropic.AsyncAnthropic
) -> None:
    """The client or the path decides the form; `?beta=true` is refused only on paths of ramet."""
    with pytest.raises(openai.NotFoundError) as missing:
        await as_openai.responses.create(model="any", input="a")
    assert missing.value.type == "invalid_request_error"
    with pytest.raises(openai.APIStatusError) as not_ours:
        await as_openai.images.generate(prompt="a")
    assert not_ours.value.type == "invalid_request_error"
    with pytest.raises(anthropic.NotFoundError) as unknown:
        await as_anthropic.messages.count_tokens(model="any", messages=[user_message("a")])
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    for path, kind in (("/v1/embeddings", "invalid_request_error"), ("/v1/messages/batches", "not_found_error")):
        bare = await echo_server.ask("POST", path, "x", json={})
        assert (bare.status_code, bare.json()["error"]["type"]) == (404, kind)
    for method, path in (("GET", "/v1/chat/completions"), ("GET", "/v1/messages")):
        bare = await echo_server.ask(method, path, "x")
        assert (bare.status_code, bare.json()["error"]["type"]) == (405, "invalid_request_error")
    for path in ("/v1/chat/completions", "/v1/messages"):
        bare = await echo_server.ask("POST", path, json={})
        assert (bare.status_code, "a key is needed" in bare.json()["error"]["message"]) == (401, True)

    beta = await as_anthropic.beta.messages.create(model="any", max_tokens=9, messages=[user_message("a")])
    assert beta.content[0].text == "1: a "  # type: ignore[union-attr]
    response = await echo_server.ask("GET", "/v1/teams?beta=true", echo_server.server.operator)
    assert (response.status_code, response.json()["field"]) == (422, "beta")
    assert (
        (await echo_server.ask("GET", "/v1/nothing", echo_server.server.operator))
        .json()["type"]
        .startswith("urn:ramet:")
    )
