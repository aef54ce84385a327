"""The text of what a server of the Model Context Protocol sends: bytes are only named."""

from __future__ import annotations

import mcp_types as types


def text_of(block: types.ContentBlock) -> str:
    """Return a block of a result or of a prompt as text."""
    match block:
        case types.TextContent():
            return block.text
        case types.ResourceLink():
            return f"[resource {block.uri}: {block.name}]"
        case types.EmbeddedResource(resource=types.BlobResourceContents() as resource):
            return f"[resource {resource.uri}, {len(resource.blob)} characters of base64]"
        case types.EmbeddedResource():
            return resource_text(block.resource)
        case types.ImageContent():
            return f"[image of type {block.mime_type}, {len(block.data)} characters of base64]"
        case types.AudioContent():
            return f"[{block.type} of type {block.mime_type}, {len(block.data)} characters of base64: not shown]"


def resource_text(resource: types.TextResourceContents | types.BlobResourceContents) -> str:
    """Return a resource, or a part of one, as text."""
    if isinstance(resource, types.TextResourceContents):
        return f"[resource {resource.uri}]\n{resource.text}"
    kind = f" of type {resource.mime_type}" if resource.mime_type else ""
    return f"[resource {resource.uri}{kind}, {len(resource.blob)} characters of base64: not shown]"
