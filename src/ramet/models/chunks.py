"""Join the chunks of one streamed reply, once.

Adding chunks with + is quadratic. LangChain's merge then tries to repair invalid JSON in tool arguments by removing one
character at a time: 60 kB of malformed arguments took 6.4 s of CPU, and truncated arguments became a *valid* call with
half of its arguments. So the fragments of arguments are joined here and parsed strictly as JSON. Arguments that cannot
be parsed give an invalid tool call, which is reported to the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from langchain_core.messages import AIMessage, AIMessageChunk, InvalidToolCall, ToolCall, message_chunk_to_message
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.messages.tool import ToolCallChunk, invalid_tool_call, tool_call

from ramet.core.errors import InvalidValue, ModelFailed
from ramet.models.json_values import clean_text, sanitize, to_json_value
from ramet.models.providers.reported_usage import is_credible

#: Maximum bytes of the arguments of one reply's tool calls together.
MAX_ARGUMENT_BYTES: Final = 1_000_000
#: Maximum size of one reply, in characters and `CHUNK_SIZE` for each chunk: 128,000 tokens, one a chunk, take 10 MB.
MAX_REPLY_SIZE: Final = 20_000_000
#: Counted for a chunk beyond its text. A stream of empty chunks is not endless either.
CHUNK_SIZE: Final = 64


def merge(chunks: Sequence[AIMessageChunk], model: str = "model") -> AIMessage:
    """Return the message of these chunks. Raises ModelFailed if there are none, or the arguments are too large."""
    if not chunks:
        raise ModelFailed(model, "the stream ended without a single chunk", retryable=True)
    calls = _join_calls(chunk.tool_call_chunks for chunk in chunks)
    bare = [_without_calls(chunk) for chunk in chunks]
    message = cast(AIMessage, message_chunk_to_message(add_ai_message_chunks(*_coalesce(bare))))
    valid, invalid = _parse_calls(calls)
    if valid:
        message.tool_calls = valid
    if invalid:
        message.invalid_tool_calls = invalid
    return validate_message(message, model)


def validate_message(message: AIMessage, model: str = "model") -> AIMessage:
    """Return the message with only data that journals and providers accept; the same object if nothing changes.

    Calls whose arguments are not plain data (an integer above 2^53, NaN) become invalid calls; lone surrogates become
    U+FFFD. A usage that the message cannot have had is dropped: it counts as not reported.
    """
    check_reply(reply_size(message), model)
    if not is_credible(message):
        message = message.model_copy(update={"usage_metadata": None})
    content = message.content
    if type(content) is not str or not content.isascii():
        clean_content = sanitize(content)
        if clean_content != content:
            message = message.model_copy(update={"content": clean_content})
    if not message.tool_calls and not message.invalid_tool_calls:
        return message
    valid: list[ToolCall] = []
    invalid = [cast(InvalidToolCall, sanitize(call)) for call in message.invalid_tool_calls]
    for call in message.tool_calls:
        try:
            valid.append({**call, "args": to_json_value(call["args"], "arguments")})
        except InvalidValue as error:
            args = json.dumps(sanitize(call["args"]), default=str)
            invalid.append(invalid_tool_call(name=call["name"], args=args, id=call["id"], error=str(error)))
    size = sum(len(json.dumps(call["args"])) for call in valid) + sum(len(call["args"] or "") for call in invalid)
    check_arguments(size, model)
    if valid == message.tool_calls and invalid == message.invalid_tool_calls:
        return message
    return message.model_copy(update={"tool_calls": valid, "invalid_tool_calls": invalid})


def arguments_bytes(chunk: AIMessageChunk) -> int:
    """Return the number of bytes of tool arguments in this chunk."""
    return sum(len((piece["args"] or "").encode("utf-8", "surrogatepass")) for piece in chunk.tool_call_chunks)


def check_arguments(size: int, model: str) -> None:
    """Raise ModelFailed, not retryable, if tool arguments are too large."""
    if size > MAX_ARGUMENT_BYTES:
        raise ModelFailed(model, f"the arguments of its tool calls are over {MAX_ARGUMENT_BYTES:,} bytes")


def reply_size(message: AIMessage) -> int:
    """Return the size of a message or chunk: the characters of its text and of the texts in its blocks."""
    content = message.content
    if isinstance(content, str):
        return CHUNK_SIZE + len(content)
    texts = (value for block in content for value in (block.values() if isinstance(block, dict) else (block,)))
    return CHUNK_SIZE + sum(len(text) for text in texts if isinstance(text, str))


def check_reply(size: int, model: str) -> None:
    """Raise ModelFailed, not retryable, if a reply is too large."""
    if size > MAX_REPLY_SIZE:
        raise ModelFailed(model, f"its reply is over {MAX_REPLY_SIZE:,} characters")


@dataclass(slots=True)
class _Call:
    """A tool call that is being collected."""

    name: str = ""
    id: str | None = None
    index: int | str | None = None
    pieces: list[str] = field(default_factory=list)


def _join_calls(lists: Iterable[Sequence[ToolCallChunk]]) -> list[_Call]:
    """Join pieces with the same index unless their ids differ; a piece without an index stands alone."""
    calls: list[_Call] = []
    latest: dict[int | str, _Call] = {}
    for pieces in lists:
        for piece in pieces:
            index, call_id = piece.get("index"), piece.get("id")
            call = latest.get(index) if index is not None else None
            if call is None or (call.id and call_id and call.id != call_id):
                call = _Call(index=index)
                calls.append(call)
                if index is not None:
                    latest[index] = call
            call.name += piece.get("name") or ""
            call.id = call.id or call_id
            if piece.get("args"):
                call.pieces.append(cast(str, piece["args"]))
    return calls


def _parse_calls(calls: Iterable[_Call]) -> tuple[list[ToolCall], list[InvalidToolCall]]:
    valid: list[ToolCall] = []
    invalid: list[InvalidToolCall] = []
    for call in calls:
        text = "".join(call.pieces)
        try:
            args = json.loads(text, strict=False) if text else {}
            problem = None if isinstance(args, dict) else "the arguments are not a JSON object"
        except (ValueError, RecursionError) as error:
            args, problem = {}, f"the arguments are not JSON: {error}"
        if problem is None:
            valid.append(tool_call(name=call.name, args=args, id=call.id))
        else:
            invalid.append(invalid_tool_call(name=call.name, args=clean_text(text), id=call.id, error=problem))
    return valid, invalid


def _without_calls(chunk: AIMessageChunk) -> AIMessageChunk:
    if not chunk.tool_call_chunks:
        return chunk
    # model_copy does not validate: the repair described above is never run.
    return chunk.model_copy(update={"tool_call_chunks": [], "tool_calls": [], "invalid_tool_calls": []})


def _coalesce(chunks: Sequence[AIMessageChunk]) -> list[AIMessageChunk]:
    """Join runs of chunks that add text to the same block, so that merging lists of blocks stays linear."""
    result: list[AIMessageChunk] = []
    run: list[str] = []
    key: tuple[Any, ...] | None = None
    for chunk in chunks:
        delta = _delta(chunk)
        if delta is not None and delta[0] == key:
            run.append(delta[1])
            continue
        _close(result, run, key)
        run, key = ([delta[1]], delta[0]) if delta is not None else ([], None)
        result.append(chunk)
    _close(result, run, key)
    return result


def _close(result: list[AIMessageChunk], run: list[str], key: tuple[Any, ...] | None) -> None:
    if len(run) > 1 and key is not None:
        block = {**cast(dict[str, Any], result[-1].content[0]), key[2]: "".join(run)}
        result[-1] = result[-1].model_copy(update={"content": [block]})


_DELTA_KEYS: Final = {"text": "text", "thinking": "thinking", "input_json_delta": "partial_json"}


def _delta(chunk: AIMessageChunk) -> tuple[tuple[Any, ...], str] | None:
    """Return the block that a chunk adds to, and the text it adds; None if the chunk does anything else."""
    content = chunk.content
    if isinstance(content, str) or len(content) != 1 or chunk.usage_metadata or chunk.additional_kwargs:
        return None
    block = content[0]
    if not isinstance(block, dict) or len(block) != 3 or "index" not in block:
        return None
    key = _DELTA_KEYS.get(block.get("type", ""))
    if key is None or not isinstance(block.get(key), str):
        return None
    if chunk.chunk_position or set(chunk.response_metadata) - {"model_provider"}:
        return None
    return (block["index"], block["type"], key, chunk.id), block[key]
