"""Requests to a server of the Model Context Protocol besides calls of its tools: for its resources and its prompts.

Each is run by the task that owns the session, and is bounded as the list of tools is: a server may send endless pages.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Final, TypeVar

import mcp_types as types
from mcp import ClientSession, MCPError
from pydantic import TypeAdapter

from ramet.host.mcp.content_text import resource_text, text_of
from ramet.tools.mcp.connection_port import (
    Feature,
    ListedPrompt,
    ListedResource,
    ListedTool,
    McpResult,
    PromptArgument,
)

MAX_ENTRIES, MAX_PAGES = 500, 16
MAX_TEXT: Final = 1_000  #: characters of a description
MAX_URI: Final = 2_000
MAX_ARGUMENTS: Final = 50  #: of a prompt
_METHOD_NOT_FOUND: Final = -32601
_NO_INPUT: Final = "the server asked for more input, which this client does not give"

P = TypeVar("P", types.ListResourcesResult, types.ListResourceTemplatesResult, types.ListPromptsResult)

_Contents: TypeAdapter[types.ReadResourceResult | types.InputRequiredResult] = TypeAdapter(
    types.ReadResourceResult | types.InputRequiredResult
)
_Messages: TypeAdapter[types.GetPromptResult | types.InputRequiredResult] = TypeAdapter(
    types.GetPromptResult | types.InputRequiredResult
)


def features_of(capabilities: types.ServerCapabilities) -> frozenset[Feature]:
    """Return what a server offers besides tools."""
    offered: dict[Feature, object] = {"resources": capabilities.resources, "prompts": capabilities.prompts}
    return frozenset(name for name, each in offered.items() if each is not None)


def listed_tool(tool: types.Tool) -> ListedTool:
    """Return a tool as its server lists it, with what the server says of a second call."""
    hints = tool.annotations
    is_repeatable = hints is not None and bool(hints.read_only_hint or hints.idempotent_hint)
    return ListedTool(tool.name, tool.description or "", tool.input_schema, is_repeatable)


async def list_resources(session: ClientSession) -> tuple[ListedResource, ...]:
    """Return the resources of a server, then its templates of resources, as many as are read. Raises MCPError."""
    listed: list[ListedResource] = []
    async with aclosing(_pages(session, types.ListResourcesRequest, types.ListResourcesResult)) as pages:
        async for page in pages:
            listed += [_resource(each, each.uri) for each in page.resources]
            if len(listed) >= MAX_ENTRIES:
                break
    templates = _pages(session, types.ListResourceTemplatesRequest, types.ListResourceTemplatesResult)
    try:
        async with aclosing(templates) as template_pages:
            async for template_page in template_pages:
                listed += [_resource(each, each.uri_template, True) for each in template_page.resource_templates]
                if len(listed) >= MAX_ENTRIES:
                    break
    except MCPError as error:
        if error.code != _METHOD_NOT_FOUND:  # Few servers have templates.
            raise
    return tuple(listed[:MAX_ENTRIES])


async def read_resource(session: ClientSession, uri: str) -> McpResult:
    """Return the text of a resource. Raises MCPError."""
    request = types.ReadResourceRequest(params=types.ReadResourceRequestParams(uri=uri))
    result = await session.send_request(request, _Contents)
    if isinstance(result, types.InputRequiredResult):
        return McpResult(_NO_INPUT, is_error=True)
    return McpResult("\n".join(map(resource_text, result.contents)))


async def list_prompts(session: ClientSession) -> tuple[ListedPrompt, ...]:
    """Return the prompts of a server, as many as are read. Raises MCPError."""
    listed: list[ListedPrompt] = []
    async with aclosing(_pages(session, types.ListPromptsRequest, types.ListPromptsResult)) as pages:
        async for page in pages:
            listed += map(_prompt, page.prompts)
            if len(listed) >= MAX_ENTRIES:
                break
    return tuple(listed[:MAX_ENTRIES])


async def get_prompt(session: ClientSession, name: str, arguments: Mapping[str, str]) -> McpResult:
    """Return the text of a prompt with its arguments: of each of its messages. Raises MCPError."""
    params = types.GetPromptRequestParams(name=name, arguments=dict(arguments))
    request = types.GetPromptRequest(params=params)
    result = await session.send_request(request, _Messages)
    if isinstance(result, types.InputRequiredResult):
        return McpResult(_NO_INPUT, is_error=True)
    texts = [(each.role, text_of(each.content)) for each in result.messages]
    if all(role == "user" for role, _ in texts):
        return McpResult("\n\n".join(text for _, text in texts))
    return McpResult("\n\n".join(f"{role}:\n{text}" for role, text in texts))


async def _pages(session: ClientSession, request: Any, result: type[P]) -> AsyncGenerator[P]:
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        page = await session.send_request(request(params=params), result)
        yield page
        cursor = page.next_cursor
        if cursor is None:
            return


def _resource(each: types.Resource | types.ResourceTemplate, uri: str, is_template: bool = False) -> ListedResource:
    description = (each.description or each.title or "")[:MAX_TEXT]
    return ListedResource(uri[:MAX_URI], each.name[:MAX_TEXT], description, (each.mime_type or "")[:200], is_template)


def _prompt(each: types.Prompt) -> ListedPrompt:
    arguments = tuple(
        PromptArgument(one.name[:MAX_TEXT], (one.description or "")[:MAX_TEXT], bool(one.required))
        for one in (each.arguments or [])[:MAX_ARGUMENTS]
    )
    return ListedPrompt(each.name[:MAX_TEXT], (each.description or each.title or "")[:MAX_TEXT], arguments)
