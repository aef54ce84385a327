"""The blocks of messages that hold an image or a document, or its hash.

A *stored* block is what conversations and the journal have:

    {"type": "image", "blob": "<hash>", "mime_type": "image/png", "bytes": 12345, "name": "plan.png"}

`type` is `image`, or `file` for a PDF and a text. An *inline* block holds the bytes, in one of the forms of LangChain,
OpenAI, Anthropic or the Model Context Protocol.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from ramet.core.errors import InvalidValue, StoreFailed
from ramet.core.media.attachment import MAX_FILES, Attachment
from ramet.core.media.media_types import MAX_FILE_BYTES, MAX_NAME, TEXT, MediaType, media_type_of

#: A block of a message: JSON.
Block = dict[str, Any]
#: Stores bytes, and returns their name.
StoreBlob = Callable[[bytes], Awaitable[str]]

#: Types of blocks that may hold an image or a document.
KINDS: Final = frozenset({"image", "image_url", "input_image", "file", "input_file", "document"})
#: Bytes of the images and documents of one result: as base64 they fit into one report of a sandbox.
MAX_RESULT_BYTES: Final = 5_000_000
_MAX_BASE64: Final = MAX_FILE_BYTES * 4 // 3 + 100_000  #: with line breaks
_PARTS: Final = ("source", "file", "image_url")
_DATA_KEYS: Final = ("base64", "data", "file_data", "url", "image_url")


def is_media(block: object) -> bool:
    return isinstance(block, dict) and block.get("type") in KINDS


def is_stored(block: object) -> bool:
    """Return whether a block names bytes in the store by their hash."""
    return isinstance(block, dict) and block.get("type") in ("image", "file") and isinstance(block.get("blob"), str)


def inline_data(block: Mapping[str, Any], field: str = "data") -> bytes | None:
    """Return the bytes that a block holds; None for a block that refers to them. Raises InvalidValue for bad base64."""
    for part in (block, *(block.get(name) for name in _PARTS)):
        if isinstance(part, Mapping):
            for key in _DATA_KEYS:
                text = part.get(key)
                if isinstance(text, str) and (found := _decoded(text, key, field)) is not None:
                    return found
    return None


def _decoded(text: str, key: str, field: str) -> bytes | None:
    if text.startswith("data:"):
        head, _, text = text.partition(",")
        if not head.endswith(";base64"):
            raise InvalidValue(field, head[:80], "data:<type>;base64,…")
    elif key in ("url", "image_url"):
        return None
    if len(text) > _MAX_BASE64:
        raise InvalidValue(field, f"{len(text)} characters", f"base64 of at most {MAX_FILE_BYTES} bytes")
    try:
        return base64.b64decode(text, validate=False)
    except (binascii.Error, ValueError):
        raise InvalidValue(field, text[:40], "base64") from None


def name_of(block: Mapping[str, Any]) -> str:
    """Return the name of a file in a block: the text of a stranger, without what a terminal or a tag would read."""
    nested = block.get("file")
    for part in (block, nested if isinstance(nested, Mapping) else {}):
        for key in ("name", "filename", "title"):
            if isinstance(name := part.get(key), str) and name:
                return "".join(each for each in name[:MAX_NAME] if each.isprintable() and each not in "<>\"'&")
    return ""


def inline_block(data: bytes, media_type: MediaType, name: str = "") -> Block:
    """Return the block that holds these bytes, in LangChain's form."""
    kind = "image" if media_type.is_image else "file"
    block: Block = {"type": kind, "base64": base64.b64encode(data).decode(), "mime_type": media_type.name}
    return {**block, "name": name} if name else block


async def store_block(data: bytes, media_type: MediaType, name: str, store: StoreBlob) -> Block:
    """Store these bytes, and return the block that names them. Raises StoreFailed."""
    kind = "image" if media_type.is_image else "file"
    block: Block = {"type": kind, "blob": await store(data), "mime_type": media_type.name, "bytes": len(data)}
    return {**block, "name": name} if name else block


async def attachment_blocks(attachments: Sequence[Attachment], store: StoreBlob | None) -> list[Block]:
    """Return the blocks of a prompt's attachments, stored if there is a store."""
    return [
        inline_block(each.data, each.media_type, each.name)
        if store is None
        else await store_block(each.data, each.media_type, each.name, store)
        for each in attachments
    ]


async def checked_content(content: object, store: StoreBlob | None) -> list[Any] | None:
    """Return the content of a tool's result with each image and document checked, and stored if there is a store.

    A block that no model gets becomes a text that names it and says why. Returns None for content without such blocks.
    """
    if not isinstance(content, list) or not any(map(is_media, content)):
        return None
    checked: list[Any] = []
    count = size = 0
    for block in content:
        if not is_media(block):
            checked.append(block)
            continue
        try:
            data = inline_data(block)
            if data is None:
                raise InvalidValue("data", "an address", "the bytes themselves")
            count, size = count + 1, size + len(data)
            if count > MAX_FILES or size > MAX_RESULT_BYTES:
                accepted = f"at most {MAX_FILES} files of {MAX_RESULT_BYTES} bytes in one result"
                raise InvalidValue("data", f"{count} files of {size} bytes", accepted)
            media_type, name = media_type_of(data), name_of(block)
            if media_type.name == TEXT:
                checked.append({"type": "text", "text": f"[{label(block)}]\n{data.decode('utf-8', 'replace')}"})
            elif store is None:
                checked.append(inline_block(data, media_type, name))
            else:
                checked.append(await store_block(data, media_type, name, store))
        except StoreFailed:
            raise
        except InvalidValue as refusal:
            reason = f"{str(refusal.value)[:80]}; accepted: {refusal.accepted}"
            checked.append({"type": "text", "text": f"[{label(block)}: left out: {reason}]"})
    return checked


def label(block: Mapping[str, Any]) -> str:
    """Return the words that name an image or a document in a text."""
    kind = "image" if str(block.get("type")) in ("image", "image_url", "input_image") else "file"
    name, mime_type, size = name_of(block), block.get("mime_type"), block.get("bytes")
    words = [kind, *([name] if name else [])]
    if isinstance(mime_type, str) and len(mime_type) <= MAX_NAME and mime_type.isprintable():
        words.append(f"of type {mime_type}")
    if isinstance(size, int):
        words.append(f"of {size:,} bytes")
    return " ".join(words)


def without_data(content: object) -> Any:
    """Return the content of a message with its inline blocks as names alone: its bytes are elsewhere by now."""
    if not isinstance(content, list):
        return content
    return [{"type": "text", "text": f"[{label(each)}]"} if is_media(each) else each for each in content]
