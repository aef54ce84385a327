"""A model that asks another model, and writes the dialogue to a file."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from types import MappingProxyType
from typing import Any, Final

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from pydantic import PrivateAttr

from ramet.core.arguments import check_instance
from ramet.core.errors import InvalidValue, ModelFailed, RametError
from ramet.models.call import Bound, bind, can_stream, complete, output_limit, stream_reply
from ramet.models.json_values import plain_parts
from ramet.models.made_stream import tool_name
from ramet.models.messages import encode
from ramet.models.providers.credentials import check_key
from ramet.models.providers.stream_usage import UsageRefused
from ramet.models.resolve import model_name, resolve
from ramet.models.retries import without_retries
from ramet.testing.recordings.key_mask import KeyMask, checked_keys, keys_of_environment, keys_of_model
from ramet.testing.recordings.recording_file import Failure, RecordingWriter, Reply, Request, request_of
from ramet.testing.recordings.text_replacement import TextReplacement

NO_STAND_INS: Final[Mapping[str, str]] = MappingProxyType({})
CHUNK_FIELDS: Final = (
    "content",
    "tool_call_chunks",
    "usage_metadata",
    "id",
    "additional_kwargs",
    "response_metadata",
    "chunk_position",
)
#: Metadata that LangChain adds to a reply on request: headers of the answer, which may have cookies.
_DROPPED_METADATA: Final = ("headers",)


def record_to(
    path: str | os.PathLike[str],
    model: BaseChatModel | str,
    *,
    secrets: Iterable[str] = (),
    replace: Mapping[str, str] = NO_STAND_INS,
) -> RecordingModel:
    """Return a model that asks `model` and records the dialogue in the file `path`, which it replaces at once.

    `model` is a LangChain chat model, or a string as for `ramet.resolve`. Keys of the model and of the environment, and
    all `secrets`, are masked. `replace` maps texts that differ from run to run, such as a temporary folder, to their
    stand-ins in the file: `{str(tmp_path): "/project"}`. Each request is in the file when its reply has ended. Each
    model needs a file of its own. Raises ModelFailed for a model without a key, and what `resolve` raises.
    """
    if isinstance(model, str):
        model = resolve(model)
    check_instance("model", model, BaseChatModel, "a LangChain chat model, or 'provider:name'")
    given_keys = checked_keys(secrets)
    check_key(model)
    keys = given_keys | keys_of_model(model) | keys_of_environment()
    file, stand_ins = pathlib.Path(path).absolute(), TextReplacement(checked_stand_ins(replace))
    return RecordingModel(model, RecordingWriter(file, KeyMask(keys), stand_ins))


class RecordingModel(BaseChatModel):
    """A model that asks another one, and appends each request and its reply to a recording: see `record_to`.

    Retries of the provider's SDK are off, as ramet's retries are requests of their own. A choice of tool and stop words
    are refused: a recording does not have them.
    """

    model_name: str = "recording"
    max_tokens: int | None = None
    max_retries: int = 0

    _model: BaseChatModel = PrivateAttr()
    _writer: RecordingWriter = PrivateAttr()
    _bound: tuple[tuple[int, ...], Bound] | None = PrivateAttr(default=None)

    def __init__(self, model: BaseChatModel, writer: RecordingWriter) -> None:
        attempts = without_retries(model)
        super().__init__(
            model_name=model_name(model),
            max_tokens=output_limit(model),
            max_retries=attempts.requests - 1,  # type: ignore[call-arg]  # pydantic's plugin sees only this signature
            disable_streaming=not can_stream(model),
            profile=model.profile,
        )
        self._model, self._writer = attempts.model, writer

    @property
    def path(self) -> pathlib.Path:
        """The file of the recording."""
        return self._writer.path

    @property
    def _llm_type(self) -> str:
        return "recording"

    def bind_tools(
        self,
        tools: Sequence[dict[str, Any] | type | Callable[..., Any] | BaseTool],
        *,
        tool_choice: str | None = None,
        **kwargs: Any,
    ) -> Runnable[LanguageModelInput, Any]:
        """Return this model with tools. Raises InvalidValue for a tool choice."""
        check_tool_choice(tool_choice)
        return self.bind(tools=list(tools), **kwargs)

    async def _agenerate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        request, bound = self._request(messages, stop, kwargs)
        try:
            message = await complete(bound, messages, max_tokens=kwargs.get("max_tokens"))
        except ModelFailed as error:
            self._writer.append(request, Reply(error=Failure.of(error)))
            raise
        except asyncio.CancelledError:
            self._writer.append(request, Reply(cancelled=True))
            raise
        self._writer.append(request, Reply(message=_without_headers(encode(message))))
        return ChatResult(generations=[ChatGeneration(message=message)])

    def _generate(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> ChatResult:
        """Generate in a thread without an event loop. Raises RametError in one, which would block itself."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(self._agenerate(messages, stop, **kwargs))
        raise RametError("call this model with `await`, or from a thread without an event loop")

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, *_: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        request, bound = self._request(messages, stop, kwargs)
        chunks: list[dict[str, Any]] = []
        try:
            async with aclosing(_stream(bound, messages, kwargs.get("max_tokens"))) as pieces:
                async for piece in pieces:
                    chunks.append(_chunk_data(piece))
                    yield ChatGenerationChunk(message=piece)
        except ModelFailed as error:
            self._writer.append(request, Reply(chunks=chunks, error=Failure.of(error)))
            raise
        except (asyncio.CancelledError, GeneratorExit):
            self._writer.append(request, Reply(chunks=chunks, cancelled=True))
            raise
        self._writer.append(request, Reply(chunks=chunks))

    def _request(
        self, messages: Sequence[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> tuple[Request, Bound]:
        check_stop(stop)
        tools = kwargs.get("tools", [])
        identity = tuple(map(id, tools))
        if self._bound is None or self._bound[0] != identity:  # Binding tools costs more than a request.
            self._bound = (identity, bind(self._model, tools))
        names = [tool_name(tool) for tool in tools]
        return request_of(self, self.model_name, messages, names, kwargs.get("max_tokens")), self._bound[1]


def checked_stand_ins(replace: Mapping[str, str]) -> dict[str, str]:
    """Return texts and their stand-ins. Raises InvalidValue for no texts, and for a stand-in of two texts."""
    check_instance("replace", replace, Mapping, "a mapping of texts to stand-ins")
    if not all(isinstance(text, str) and text for pair in replace.items() for text in pair):
        raise InvalidValue("replace", dict(replace), "a mapping of texts to stand-ins, none of them empty")
    if len(set(replace.values())) < len(replace):
        raise InvalidValue("replace", dict(replace), "a stand-in of its own for each text")
    return dict(replace)


def check_tool_choice(tool_choice: object) -> None:
    """Raise InvalidValue for a choice of tool, which a recording does not have."""
    if tool_choice not in (None, "auto"):
        raise InvalidValue("tool_choice", tool_choice, "'auto', or none: the model chooses")


def check_stop(stop: object) -> None:
    """Raise InvalidValue for stop words, which a recording does not have."""
    if stop:
        raise InvalidValue("stop", stop, "no stop words: they are not recorded")


async def _stream(
    bound: Bound, messages: Sequence[BaseMessage], max_tokens: int | None
) -> AsyncGenerator[AIMessageChunk]:
    """Yield the chunks of a reply; ask once more, without usage, where an endpoint refuses to report it."""
    for usage in (True, False):
        try:
            async with aclosing(stream_reply(bound, messages, max_tokens=max_tokens, usage=usage)) as pieces:
                async for piece in pieces:
                    yield piece
            return
        except UsageRefused:
            if not usage:
                raise


def _chunk_data(chunk: AIMessageChunk) -> dict[str, Any]:
    fields = plain_parts({name: getattr(chunk, name) for name in CHUNK_FIELDS}, "chunk", [])
    # An empty list of blocks is kept: merged with blocks, an empty text would become a block of its own.
    return _without_headers(
        {name: value for name, value in fields.items() if value or (name == "content" and value == [])}
    )


def _without_headers(message: dict[str, Any]) -> dict[str, Any]:
    if "response_metadata" in message:
        metadata = {
            name: value for name, value in message["response_metadata"].items() if name not in _DROPPED_METADATA
        }
        message = {**message, "response_metadata": metadata}
    return message
