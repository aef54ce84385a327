"""Images and documents of a conversation as a model gets them: bytes, in a form that its provider reads, or names.

`fitted_messages` decides without I/O; the reservation is made for its result. `with_data` loads the bytes right before
a request is sent, so that no conversation holds them.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from ramet.core.media.blocks import Block, is_stored, label
from ramet.core.media.media_types import PDF, TEXT

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel

#: Loads bytes by their name; None if they are missing.
LoadBlob = Callable[[str], Awaitable[bytes | None]]

#: Images and documents of one request, and their bytes: the newest ones are sent, older ones are named.
MAX_REQUEST_FILES: Final = 50
MAX_REQUEST_BYTES: Final = 20_000_000
#: Packages whose models read images in the results of tools. Elsewhere the images follow the results in a message of
#: the user.
_READS_IN_RESULTS: Final = ("langchain_anthropic",)
_MOVED: Final = "[Files of the results above: {ids}]"


class Sight(NamedTuple):
    """The kinds of files that a model reads."""

    images: bool = True
    pdfs: bool = True
    in_results: bool = False  #: also in the results of tools


def sight_of(model: BaseChatModel) -> Sight:
    """Return the kinds of files that a model reads, by its profile; what the profile does not say counts as read."""
    profile = model.profile or {}
    in_results = type(model).__module__.startswith(_READS_IN_RESULTS)
    return Sight(profile.get("image_inputs") is not False, profile.get("pdf_inputs") is not False, in_results)


def fitted_messages(messages: Sequence[BaseMessage], sight: Sight) -> Sequence[BaseMessage]:
    """Return the messages as this model can read them, with names in place of files that it cannot read.

    The same object is returned for messages without files.
    """
    if not _have_files(messages):
        return messages
    count = size = 0
    fitted: list[BaseMessage] = []
    for message in reversed(messages):
        content = message.content
        if type(content) is not list or not any(map(is_stored, content)):
            fitted.append(message)
            continue
        blocks: list[Any] = []
        for block in reversed(content):
            if is_stored(block):
                assert isinstance(block, dict), "it is stored"
                reason = _objection(block, sight)
                if not reason:
                    count, size = count + 1, size + int(block.get("bytes") or 0)
                    if count > MAX_REQUEST_FILES or size > MAX_REQUEST_BYTES:
                        reason = "left out: newer files fill the request"
                block = block if not reason else {"type": "text", "text": f"[{label(block)}: {reason}]"}
            blocks.append(block)
        fitted.append(message.model_copy(update={"content": blocks[::-1]}))
    fitted.reverse()
    return fitted if sight.in_results else _moved_behind_results(fitted)


def _have_files(messages: Sequence[BaseMessage]) -> bool:
    """Return whether a message has a file: a plain loop, since all messages are looked at before each request."""
    for message in messages:
        content = message.content
        if type(content) is list and any(map(is_stored, content)):
            return True
    return False


def _objection(block: Block, sight: Sight) -> str:
    if block["type"] == "image":
        return "" if sight.images else "this model does not see images"
    return "this model does not read PDFs" if block.get("mime_type") == PDF and not sight.pdfs else ""


def _moved_behind_results(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages with the files of tool results in a message of the user behind all results of a reply."""
    moved: list[BaseMessage] = []
    blocks: list[Any] = []
    ids: list[str] = []
    for message in messages:
        if blocks and not isinstance(message, ToolMessage):
            moved.append(HumanMessage(content=[{"type": "text", "text": _MOVED.format(ids=", ".join(ids))}, *blocks]))
            blocks, ids = [], []
        if isinstance(message, ToolMessage) and isinstance(message.content, list):
            files = [each for each in message.content if is_stored(each)]
            if files:
                blocks += files
                ids.append(message.tool_call_id)
                rest = [
                    {"type": "text", "text": f"[{label(each)}: below]"} if is_stored(each) else each  # type: ignore[arg-type]  # it is stored
                    for each in message.content
                ]
                message = message.model_copy(update={"content": _text(rest)})
        moved.append(message)
    if blocks:
        moved.append(HumanMessage(content=[{"type": "text", "text": _MOVED.format(ids=", ".join(ids))}, *blocks]))
    return moved


def _text(content: list[Any]) -> Any:
    """Return blocks of nothing but text as one text: not every provider takes a list there."""
    texts = [each if isinstance(each, str) else each.get("text") for each in content]
    return "\n".join(texts) if all(isinstance(each, str) for each in texts) else content


async def with_data(messages: Sequence[BaseMessage], load: LoadBlob | None) -> Sequence[BaseMessage]:
    """Return the messages with the bytes of their files, for one request. A file that is missing is named."""
    if not _have_files(messages):
        return messages
    loaded: list[BaseMessage] = []
    for message in messages:
        content = message.content
        if type(content) is list and any(map(is_stored, content)):
            blocks = [await _loaded(each, load) if is_stored(each) else each for each in content]  # type: ignore[arg-type]  # it is stored
            message = message.model_copy(update={"content": blocks})
        loaded.append(message)
    return loaded


async def _loaded(block: Block, load: LoadBlob | None) -> Block:
    data = await load(block["blob"]) if load is not None else None
    if data is None:
        return {"type": "text", "text": f"[{label(block)}: its content is lost]"}
    mime_type, name = block.get("mime_type"), block.get("name") or "file"
    if mime_type == TEXT:
        text = data.decode("utf-8", "replace").replace("</file", "< /file")
        return {"type": "text", "text": f'<file name="{name}">\n{text}\n</file>'}
    inline: Block = {"type": block["type"], "base64": base64.b64encode(data).decode(), "mime_type": mime_type}
    return inline if block["type"] == "image" else {**inline, "filename": name}
