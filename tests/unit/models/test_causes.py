"""The causes of a failure: which of them real clients keep, and which are believed."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx2
import pytest
from langchain_core.callbacks import AsyncCallbackHandler
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from ramet.core.errors import ModelFailed
from ramet.models.call import bind, complete, stream_reply
from ramet.models.error_causes import MAX_CAUSES, causes, description, is_malformed, is_program_error, was_never_sent
from tests.support import broken_servers as servers
from tests.support.free_ports import free_port
from tests.support.plain_models import Async
from tests.support.providers import provider

HI: list[BaseMessage] = [HumanMessage("hi")]


async def failure(url: str, **more: Any) -> Exception:
    """Return the exception that httpx raises for a request to `url`."""
    async with httpx2.AsyncClient(**more) as client:
        try:
            await client.post(url, content=b"{}")
        except Exception as error:
            return error
    raise AssertionError("it was answered")


async def refusal() -> Exception:
    return await failure(f"http://127.0.0.1:{free_port()}/v1")


async def refusal_while_handling(first: Exception) -> Exception:
    """Return a refusal that came while another failure was handled."""
    try:
        try:
            raise first
        except Exception:
            raise await refusal()  # noqa: B904 - the context is what this is about
    except Exception as error:
        return error


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_refused_connection_names_the_address(host: str) -> None:
    """A name with several addresses that each refuse gives the address, too."""
    port = free_port()

    error = await failure(f"http://{host}:{port}/v1")

    assert was_never_sent(error)
    assert description(error) == f"Connection refused {host}:{port}"


async def test_the_user_and_password_of_an_address_are_not_shown() -> None:
    """Some proxies are configured with them."""
    port = free_port()

    error = await failure(f"http://user:secret@127.0.0.1:{port}/v1?key=secret")

    assert description(error) == f"Connection refused 127.0.0.1:{port}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
async def test_an_ipv6_address_has_brackets() -> None:
    """Brackets separate the address from its port."""
    error = await failure(f"http://[::1]:{free_port()}/v1")

    assert was_never_sent(error)
    assert "[::1]:" in str(description(error))


async def test_an_unreachable_proxy_means_that_nothing_was_sent() -> None:
    """The request stays here if its proxy does not answer."""
    error = await failure("http://provider.invalid/v1", proxy=f"http://127.0.0.1:{free_port()}")

    assert was_never_sent(error)


async def test_a_connection_timeout_means_that_nothing_was_sent() -> None:
    """A server with a full queue of clients does not even make the connection."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = full.getsockname()
        waiting = [socket.socket() for _ in range(4)]
        try:
            for each in waiting:
                each.setblocking(False)
                each.connect_ex(address)
            error = await failure(f"http://127.0.0.1:{address[1]}/v1", timeout=httpx2.Timeout(30, connect=0.1))
        finally:
            for each in waiting:
                each.close()

    assert type(error).__name__ == "ConnectTimeout"
    assert was_never_sent(error)
    assert description(error) == f"no connection in time 127.0.0.1:{address[1]}"


async def test_a_read_timeout_means_that_the_request_may_have_been_sent() -> None:
    """The server read the request and has not answered yet."""
    was_read = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        was_read.set()
        await reader.read()

    async with servers.broken(silent) as server:
        error = await failure(f"http://{server.address}/v1", timeout=httpx2.Timeout(30, read=0.1))

    assert was_read.is_set()
    assert not was_never_sent(error)
    assert description(error) == f"no answer in time {server.address}"


@pytest.mark.parametrize("fault", [servers.closes_at_once, servers.closes_after_the_request])
async def test_a_request_may_have_been_sent_before_a_refusal(fault: servers.Fault) -> None:
    """A client that tries a second address raises its failure, with the first one as context."""
    async with servers.broken(fault) as server:
        assert not was_never_sent(await refusal_while_handling(await failure(f"http://{server.address}/v1")))


async def test_an_answer_may_have_come_before_a_refusal() -> None:
    """An error from outside of connecting may have come after an answer."""
    assert not was_never_sent(await refusal_while_handling(KeyError("choices")))
    assert was_never_sent(await refusal_while_handling(await refusal()))


async def test_each_failure_of_a_group_counts() -> None:
    """A group of failures was never sent if none of them was."""
    async with servers.broken(servers.closes_after_the_request) as server:
        sent_failure = await failure(f"http://{server.address}/v1")

    assert was_never_sent(ExceptionGroup("both", [await refusal(), await refusal()]))
    assert not was_never_sent(ExceptionGroup("both", [await refusal(), sent_failure]))


def test_an_error_with_the_name_of_another_is_not_believed() -> None:
    """A class counts by its package: anybody may call one ConnectError."""

    class ConnectError(Exception):
        pass

    assert not was_never_sent(ConnectError("refused"))


@pytest.mark.parametrize(
    "ways", [was_never_sent, is_malformed, is_program_error, description, lambda e: list(causes(e))]
)
def test_causes_are_bounded(ways: Callable[[BaseException], object]) -> None:
    """Causes may form a cycle, or be thousands."""
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    ways(one)
    error: Exception = ConnectionRefusedError(111, "refused")
    for _ in range(10_000):
        wrapper = RuntimeError("wrapped")
        wrapper.__cause__ = error
        error = wrapper
    ways(error)

    assert len(list(causes(error))) == MAX_CAUSES
    assert not was_never_sent(error)


# --- models


class Fallback(Async):
    """Model that asks a second address when the first fails."""

    urls: tuple[str, ...] = ()

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        try:
            raise await failure(self.urls[0])
        except Exception:
            raise await failure(self.urls[1])  # noqa: B904


async def failure_of(model: Any, tools: Any = ()) -> ModelFailed:
    with pytest.raises(ModelFailed) as refusal:
        await complete(bind(model, tools), HI)
    return refusal.value


async def test_a_request_to_a_model_with_a_fallback_may_have_been_received() -> None:
    """The last failure is not the only one."""
    nowhere = f"http://127.0.0.1:{free_port()}"
    async with servers.broken(servers.closes_after_the_request) as server:
        failure = await failure_of(Fallback(urls=(f"http://{server.address}", nowhere)))
        unheard = await failure_of(Fallback(urls=(nowhere, nowhere)))

    assert (failure.unsent, unheard.unsent) == (False, True)


async def test_a_runnable_around_a_model_is_not_believed() -> None:
    """The runnable may have asked more than once, and keeps only one failure."""

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    class Persistent(ChatOpenAI):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Runnable[Any, Any]:
            bound: Runnable[Any, Any] = super().bind_tools(tools, **kwargs)
            return bound.with_retry(stop_after_attempt=2, wait_exponential_jitter=False)

    nowhere = f"http://127.0.0.1:{free_port()}"
    fields: dict[str, Any] = {"model": "gpt-5.4-mini", "api_key": "test", "max_retries": 0, "base_url": nowhere}
    async with provider([]) as server:
        plain, persistent = ChatOpenAI(**fields), Persistent(**fields)
        server.adopt(plain)
        server.adopt(persistent)

        assert not (await failure_of(persistent, [look])).unsent
        assert (await failure_of(plain, [look])).unsent


async def test_callbacks_do_not_hide_a_refusal() -> None:
    """Callbacks take the public way, whose errors have the same causes."""
    async with provider([]) as server:
        nowhere = f"http://127.0.0.1:{free_port()}"
        model = server.openai(max_retries=0, base_url=nowhere, callbacks=[AsyncCallbackHandler()])

        assert (await failure_of(model)).unsent


async def test_an_error_after_the_first_chunk_counts_as_sent() -> None:
    """A stream that has begun is a request that was received, whatever ends it."""

    class Stumbling(Async):
        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            await asyncio.sleep(0)
            yield ChatGenerationChunk(message=AIMessageChunk(content="Hel"))
            raise TypeError("lo")

    with pytest.raises(ModelFailed) as refusal:
        _ = [piece async for piece in stream_reply(Stumbling(), HI)]

    assert not refusal.value.unsent


async def test_an_error_after_a_wait_may_have_come_after_an_answer() -> None:
    """Code that waits may have waited for an answer."""

    class Waiting(Async):
        waits: bool = True

        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            if self.waits:
                await asyncio.sleep(0)
            raise TypeError("wrong")

    errors = [await failure_of(Waiting(waits=waits)) for waits in (True, False)]

    assert [each.unsent for each in errors] == [False, True]
    assert not any(each.retryable for each in errors)


async def test_an_error_of_code_in_an_sdk_wrapper_is_not_retried() -> None:
    """An SDK wraps each error of its HTTP client; the same code would raise it again."""

    async def wrong(request: httpx2.Request) -> None:
        raise TypeError("wrong")

    async with provider([]) as server, httpx2.AsyncClient(event_hooks={"request": [wrong]}) as client:
        error = await failure_of(server.openai(max_retries=0, http_async_client=client))

    assert "TypeError" in str(error) or "wrong" in str(error)
    assert not error.retryable
