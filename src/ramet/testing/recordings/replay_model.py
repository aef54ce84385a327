"""A model that answers from a recording, without the provider, its SDK, a key, or a network."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

import msgspec
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from ramet.core.errors import Damaged, InvalidValue, ModelFailed
from ramet.models.chunks import merge
from ramet.models.made_stream import to_chunks, tool_name
from ramet.models.messages import decode
from ramet.testing.recordings.key_mask import KeyMask, checked_keys, keys_of_environment
from ramet.testing.recordings.recording_file import RecordedExchange, Reply, Request, read_recording, request_of
from ramet.testing.recordings.recording_model import (
    CHUNK_FIELDS,
    NO_STAND_INS,
    check_stop,
    check_tool_choice,
    checked_stand_ins,
)
from ramet.testing.recordings.request_difference import difference
from ramet.testing.recordings.text_replacement import TextReplacement


class RequestNotRecorded(ModelFailed):
    """The error for a request that a recording does not have, or not once more; `difference` says how it differs."""

    def __init__(self, model: str, path: pathlib.Path, difference: str) -> None:
        self.difference = difference
        super().__init__(model, f"{path.name} has no such request:\n{difference}", unsent=True)


def replay_from(
    path: str | os.PathLike[str], *, secrets: Iterable[str] = (), replace: Mapping[str, str] = NO_STAND_INS
) -> ReplayModel:
    """Return a model that answers each request as the recording in the file `path` does. It never uses a network.

    Equal requests get their replies in the recorded order; all others may come in any order, so that agents may work
    side by side. `secrets` and `replace` are as for `record_to`: a stand-in in the file becomes the text of this run.
    Raises FileNotFoundError, InvalidValue for a file of another version or a file that is too large, and Damaged for a
    line that cannot be read.
    """
    file = pathlib.Path(path).absolute()
    mask = KeyMask(checked_keys(secrets) | keys_of_environment())
    return ReplayModel(file, read_recording(file), mask, checked_stand_ins(replace))


class ReplayModel(BaseChatModel):
    """A model that answers from a recording: see `replay_from`."""

    model_name: str = "replay"
    max_tokens: int | None = None

    _path: pathlib.Path = PrivateAttr()
    _mask: KeyMask = PrivateAttr()
    _stand_ins: TextReplacement = PrivateAttr()
    _texts: TextReplacement = PrivateAttr()  #: for the stand-ins
    _requests: list[Request] = PrivateAttr()
    _replies: dict[bytes, deque[RecordedExchange]] = PrivateAttr()
    _refusals: list[RequestNotRecorded] = PrivateAttr(default_factory=list)

    def __init__(
        self, path: pathlib.Path, exchanges: Sequence[RecordedExchange], mask: KeyMask, replace: Mapping[str, str]
    ) -> None:
        first = exchanges[0] if exchanges else None
        fields: dict[str, Any] = {}
        if first is not None:
            fields = {
                "model_name": first.request.model,
                "max_tokens": first.request.output_limit,
                "profile": first.request.profile or None,
                "disable_streaming": first.reply.message is not None,
            }
        super().__init__(**fields)
        self._path, self._mask = path, mask
        self._stand_ins = TextReplacement(replace)
        self._texts = TextReplacement({stand_in: text for text, stand_in in replace.items()})
        self._requests = [each.request for each in exchanges]
        self._replies = {}
        for each in exchanges:
            self._replies.setdefault(each.key, deque()).append(each)

    @property
    def path(self) -> pathlib.Path:
        """The file of the recording."""
        return self._path

    @property
    def requests_left(self) -> int:
        """The number of recorded requests that have not come."""
        return sum(map(len, self._replies.values()))

    def assert_all_played(self) -> None:
        """Fail if a request came that the recording does not have, or if a recorded one did not come."""
        __tracebackhide__ = True
        if self._refusals:
            raise AssertionError(str(self._refusals[0]))
        if self.requests_left:
            raise AssertionError(
                f"{self.requests_left} of {len(self._requests)} requests in {self._path.name} did not come"
            )

    @property
    def _llm_type(self) -> str:
        return "replay"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return this model with tools. Raises InvalidValue for a tool choice."""
        check_tool_choice(tool_choice)
        return self.bind(tools=[tool_name(tool) for tool in tools], **kwargs)

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        reply = self._reply(messages, stop, kwargs)
        if reply.message is not None:
            message = cast(AIMessage, self._decoded(decode, reply.message))
        else:
            message = merge([self._decoded(_chunk, each) for each in reply.chunks], self.model_name)
        return ChatResult(generations=[ChatGeneration(message=message)])

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(messages, stop, **kwargs)

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        reply = self._reply(messages, stop, kwargs, raises=False)
        for chunk in self._chunks_of(reply):
            await asyncio.sleep(0)  # Chunks of a network never come in one piece: others work in between.
            yield chunk
        await asyncio.sleep(0)
        self._raise_end(reply)

    def _chunks_of(self, reply: Reply) -> Iterator[ChatGenerationChunk]:
        if reply.message is not None:
            yield from to_chunks(cast(AIMessage, self._decoded(decode, reply.message)))
        for each in reply.chunks:
            yield ChatGenerationChunk(message=self._decoded(_chunk, each))

    def _reply(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any], *, raises: bool = True
    ) -> Reply:
        """Take the next recorded reply to a request. Raises RequestNotRecorded; with `raises` the recorded error."""
        check_stop(stop)
        names = [tool_name(tool) for tool in kwargs.get("tools", ())]
        request = request_of(self, self.model_name, messages, names, kwargs.get("max_tokens"))
        recorded_messages = self._mask.mask(self._stand_ins.apply([request.messages]))[0]
        request = Request(model=request.model, messages=recorded_messages, tools=request.tools)
        waiting = self._replies.get(request.key)
        if not waiting:
            refusal = RequestNotRecorded(self.model_name, self._path, difference(request, self._requests))
            self._refusals.append(refusal)
            raise refusal
        reply = self._with_texts(waiting.popleft().reply)
        if raises:
            self._raise_end(reply)
        return reply

    def _with_texts(self, reply: Reply) -> Reply:
        """Return a recorded reply with the texts of this run in place of their stand-ins."""
        message = self._texts.apply([reply.message])[0]
        return msgspec.structs.replace(reply, chunks=self._texts.apply(reply.chunks), message=message)

    def _raise_end(self, reply: Reply) -> None:
        """Raise the error with which a recorded reply ended, if it ended with one."""
        if reply.error is not None:
            raise reply.error.error(self.model_name)
        if reply.cancelled:
            raise ModelFailed(self.model_name, f"this request was cancelled when {self._path.name} was recorded")

    def _decoded(self, decoder: Callable[[dict[str, Any]], Any], data: dict[str, Any]) -> Any:
        try:
            return decoder(data)
        except (InvalidValue, TypeError, ValueError) as problem:
            raise Damaged("a recording", self._path, f"a reply that is none: {problem}") from None


def _chunk(data: dict[str, Any]) -> AIMessageChunk:
    if not data.keys() <= set(CHUNK_FIELDS):
        raise ValueError(f"fields {sorted(data.keys() - set(CHUNK_FIELDS))}")
    return AIMessageChunk(**{"content": "", **data})
