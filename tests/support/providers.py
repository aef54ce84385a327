"""Loopback servers with the wire formats of Anthropic, OpenAI and Gemini, which play a script and count requests.

OpenAI has two: Chat Completions, and Responses (`server.openai(use_responses_api=True)`). A request that asks for no
reply (a look at the address, a count of tokens, a list of models) takes no step of the script.

    async with provider(["Hello.", Fail(429, retry_after_s=2), Call("grep", {"pattern": "x"})]) as server:
        await server.anthropic().ainvoke("hi")      # the real ChatAnthropic
        assert server.count == 1                    # HTTP requests, not method calls

Scripts are those of `ramet.models.scripted.dialogue`, with three more ways to break off and one way not to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from ramet.core.errors import ModelFailed
from ramet.models.scripted.dialogue import Call, Cut, Dialogue, Fail, Hang, ResolvedStep, Say, Script, Step
from ramet.models.scripted.model import reply_of
from tests.support import anthropic_wire, gemini_wire, openai_responses_wire, openai_wire
from tests.support.http import Answer, Request, serve

__all__ = [
    "Call", "Cut", "Endless", "Fail", "Hang", "IncompleteStream", "Provider", "Say", "Script", "Step", "StreamError",
    "cut_short", "provider",
]  # fmt: skip

_paths = itertools.count()


@dataclass(frozen=True)
class IncompleteStream(Cut):
    """A stream that ends in the regular way, but without the events that complete a reply."""


@dataclass(frozen=True)
class StreamError(Cut):
    """A stream in which the provider reports an error after status 200."""

    error: str = "overloaded_error"


@dataclass(frozen=True, kw_only=True)
class Endless(Cut):
    """A stream of text that goes on until the client leaves."""

    after_chars: int = 0
    text: str = "And on, and on. "


class Provider:
    """A loopback server for all wire formats, and the clients that were made for it."""

    def __init__(self, url: str, script: Script) -> None:
        self.url = url
        self.requests: list[Request] = []  #: every HTTP request, in the order of arrival
        self.client_left = asyncio.Event()  #: a client left in the middle of a reply
        self.hanging = 0  #: replies that hang, and whose client is still there
        self.hold: asyncio.Event | None = None  #: where set, no request is answered before it is
        self.refusals: dict[str, str] = {}  #: fields that are refused with HTTP 400, and what is said of each
        self.failure_headers: dict[str, str] = {}  #: sent with each answer that is a `Fail`
        #: Where set, it returns the pieces that are sent for an event, by the number of the request.
        self.rewrite: Callable[[int, str], Iterable[str]] | None = None
        self._dialogue = Dialogue(script)
        self._arrivals = asyncio.Condition()
        self._models: list[BaseChatModel] = []

    @property
    def count(self) -> int:
        """Return the number of HTTP requests."""
        return len(self.requests)

    async def arrived(self, count: int) -> None:
        """Return once so many requests have come."""
        async with self._arrivals:
            await self._arrivals.wait_for(lambda: self.count >= count)

    @property
    def generations(self) -> list[Request]:
        """Return the requests that asked for a reply of a model."""
        return [request for request in self.requests if _side_answer(request) is None]

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests."""
        return [request.body for request in self.requests]

    def anthropic(self, model: str = "claude-sonnet-5-5", **kwargs: Any) -> ChatAnthropic:
        """Return a real ChatAnthropic that talks to this server."""
        fields: dict[str, Any] = {"model": model, "base_url": self._address(), "api_key": "test", **kwargs}
        made = ChatAnthropic(**fields)
        self._models.append(made)
        return made

    def openai(self, model: str = "gpt-5.4-mini", **kwargs: Any) -> ChatOpenAI:
        """Return a real ChatOpenAI that talks to this server."""
        fields: dict[str, Any] = {"model": model, "base_url": self._address() + "/v1", "api_key": "test", **kwargs}
        made = ChatOpenAI(**fields)
        self._models.append(made)
        return made

    def adopt(self, model: BaseChatModel) -> None:
        """Close this model's connections too when the server ends."""
        self._models.append(model)

    def _address(self) -> str:
        # The SDKs cache HTTP clients by address, closed ones included, and ports come round again.
        return f"{self.url}/{next(_paths)}"

    async def close_clients(self) -> None:
        """Close every connection that the clients of this server still have."""
        for model in self._models:
            for name in ("_async_client", "root_async_client"):
                client = getattr(model, name, None)
                if client is not None:
                    await client.close()
            for name in ("_client", "root_client"):
                client = getattr(model, name, None)
                if client is not None:
                    client.close()

    async def answer(self, request: Request, answer: Answer) -> None:
        """Play the next step in the wire format of the request."""
        self.requests.append(request)
        if self.rewrite is not None:
            answer.pieces_of = functools.partial(self.rewrite, self.count)
        async with self._arrivals:
            self._arrivals.notify_all()
        if self.hold is not None:
            await self.hold.wait()
        if (side_answer := _side_answer(request)) is not None:
            if request.method == "HEAD":
                await answer.send_text(200, "", {})
            else:
                await answer.send(200, side_answer)
            return
        wire = _wire(request.path)
        for field, refusal in self.refusals.items():
            if field in request.body:
                await answer.send(400, wire.error(400, refusal))
                return
        messages = wire.messages(request.body)
        try:
            line = self._dialogue.next_step(messages)
        except ModelFailed as ended:
            await answer.send(400, wire.error(400, ended.reason))
            return
        step = line.step
        if isinstance(step, Fail):
            status = step.error if isinstance(step.error, int) else 400
            headers = dict(self.failure_headers)
            if step.retry_after_s is not None:
                headers["retry-after"] = f"{step.retry_after_s:g}"
            await answer.send(status, wire.error(status, str(step.error)), headers)
        elif isinstance(step, Cut | Hang):
            await self._break_off(step, wire, request, answer)
        else:
            if isinstance(step, Say) and step.delay_s > 0:
                await asyncio.sleep(step.delay_s)
            reply = reply_of(line, messages, str(request.body.get("model")))
            pieces = step.chunks if isinstance(step, Say) else None
            if _is_stream(request):
                await answer.start_stream()
                await wire.stream(answer, request.body, reply, pieces)
                await answer.end_stream()
            else:
                await answer.send(200, wire.whole(request.body, reply))

    async def _break_off(self, step: Cut | Hang, wire: ModuleType, request: Request, answer: Answer) -> None:
        body = request.body
        if isinstance(step, Endless):
            await self._send_without_end(step, wire, body, answer)
            return
        if _is_stream(request):
            await answer.start_stream()
            reply = reply_of(ResolvedStep(step.text[: step.after_chars], "cut"), [], str(body.get("model")))
            await wire.stream(answer, body, reply, None, closing=False)
        else:
            await answer.start_body(1_000)
        if isinstance(step, Hang):
            self.hanging += 1
            await answer.client_gone()
            self.hanging -= 1
            self.client_left.set()
        elif isinstance(step, StreamError):
            await wire.stream_error(answer, step.error)
            await answer.end_stream()
        elif isinstance(step, IncompleteStream):
            await answer.end_stream()
        else:
            answer.break_off()

    async def _send_without_end(self, step: Endless, wire: ModuleType, body: dict[str, Any], answer: Answer) -> None:
        reply = reply_of(ResolvedStep(step.text, "endless"), [], str(body.get("model")))
        await answer.start_stream()
        try:
            await wire.stream(answer, body, reply, _Repeated(step.text))
        except ConnectionError:
            self.client_left.set()
            raise


def cut_short(text: str) -> AIMessage:
    """Return a reply that ended at the maximum of output tokens."""
    return AIMessage(text, response_metadata={"cut_short": True})


class _Repeated(Sequence[str]):
    """A text that comes again and again."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __len__(self) -> int:
        return sys.maxsize

    def __getitem__(self, index: Any) -> Any:
        return self._text


def _wire(path: str) -> ModuleType:
    path = path.partition("?")[0]
    if path.endswith("/messages"):
        return anthropic_wire
    if path.endswith((":generateContent", ":streamGenerateContent")):
        return gemini_wire
    return openai_responses_wire if path.endswith("/responses") else openai_wire


def _is_stream(request: Request) -> bool:
    return bool(request.body.get("stream")) or ":streamGenerateContent" in request.path


def _side_answer(request: Request) -> dict[str, Any] | None:
    """Return what answers a request that asks for no reply of a model; None if the request asks for one."""
    path = request.path.partition("?")[0]
    if path.endswith("/count_tokens"):
        return {"input_tokens": len(json.dumps(request.body)) // 4}
    if path.endswith(":countTokens"):
        return {"totalTokens": len(json.dumps(request.body)) // 4}
    return {} if request.method in ("GET", "HEAD") else None


@contextlib.asynccontextmanager
async def provider(script: Script) -> AsyncIterator[Provider]:
    """Serve `script` to all clients, in the wire format of the requested path."""
    made: list[Provider] = []

    async def handle(request: Request, answer: Answer) -> None:
        await made[0].answer(request, answer)

    async with serve(handle) as url:
        made.append(Provider(url, script))
        try:
            yield made[0]
        finally:
            await made[0].close_clients()
