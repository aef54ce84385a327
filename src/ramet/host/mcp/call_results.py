"""Results and failures of calls to servers of the Model Context Protocol, as text."""

from __future__ import annotations

from typing import Final

import mcp_types as types
import msgspec
from mcp import MCPError
from pydantic import ValidationError

from ramet.core.errors import InvalidValue, RametError
from ramet.core.media.blocks import Block, inline_data
from ramet.core.media.media_types import TEXT, media_type_of
from ramet.host.mcp.address_transport import NO_CONNECTION
from ramet.host.mcp.content_text import text_of
from ramet.tools.mcp.connection_port import McpResult

MAX_SHOWN: Final = 500


def result_of(result: types.CallToolResult) -> McpResult:
    """Return the result of a call as text."""
    parts = [text_of(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    files = tuple(file for block in result.content if (file := _file_of(block)) is not None)
    return McpResult("\n".join(parts), is_error=bool(result.is_error), files=files)


def _file_of(block: types.ContentBlock) -> Block | None:
    """Return an image or a document of a result, whose type its content says later; None for another block.

    A text is none: it would come past the framing of texts.
    """
    match block:
        case types.ImageContent():
            file: Block = {"type": "image", "base64": block.data}
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            file = {"type": "file", "base64": resource.blob, "name": str(resource.uri).rpartition("/")[2]}
        case _:
            return None
    try:
        is_text = media_type_of(inline_data(file) or b"").name == TEXT
    except InvalidValue:
        return file  # It is left out later, with the reason.
    return None if is_text else file


def reason_of(error: BaseException) -> str:
    """Return why a session failed, in a line, without what the server sent: it may be large."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError) and error.code == NO_CONNECTION:
        return error.message[:MAX_SHOWN]
    if isinstance(error, MCPError):
        return f"error {error.code}: {error.message[:MAX_SHOWN]}"
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part)[:60] for part in first["loc"])
        return f"its answer is none of the protocol: {place}: {first['msg'][:MAX_SHOWN]}"
    if isinstance(error, RametError):
        return str(error)[:MAX_SHOWN]
    return f"{type(error).__name__}: {str(error)[:MAX_SHOWN]}"
